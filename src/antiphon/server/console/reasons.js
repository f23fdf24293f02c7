// Why a session's reply runs, waits or is held, stage by stage, and what becomes of its KV, in the engine's words.

import { made } from "./transcript.js";
import { reasonInWords } from "./words.js";

const MOVES = {
  evicted: "left the device @", taken: "left the device @", copied: "moved to the host @", written: "copied to the host @",
  dropped: "left the host @", fetched: "fetched from the host @", preloaded: "preloaded @, and not read yet",
  used: "preloaded, and read by the turn @", unused: "preloaded, and lost unread @",
}; // @: when

export class Reasons {
  constructor() {
    this.element = made("td", "reasons");
    this.element.setAttribute("role", "cell");
    this.list = made("ul");
    this.list.setAttribute("aria-label", "Why");
    this.element.append(this.list);
    this.shown = "";
  }

  // `now`: the engine's clock
  show(session, now) {
    const lines = [...session.stages.map((stage, index) => doing(stage, index, now)), ...memory(session, now)].filter(Boolean);
    const shown = JSON.stringify(lines);
    if (shown === this.shown) return;
    this.shown = shown;
    this.list.replaceChildren(...lines.map(line));
  }
}

// A stage with a reply to work on. `lead_s` is how long the listener has sound if this stage stops now.
function doing({ stage, lead_s, state, label, why, until }, index, now) {
  if (!state) return null;
  const lead = lead_s === null ? "" : lead_s >= 0.05 ? `dry in ${lead_s.toFixed(1)} s` : "dry";
  if (state === "held") {
    const more = until === null ? "held" : `held ${Math.max(0, until - now).toFixed(1)} s more`;
    return { index, name: stage, label, lead, state, words: `${more}: ${why}` };
  }
  const what = state === "runs" ? "runs" : `waits for ${state}`;
  return { index, name: stage, label, lead, state, words: why ? `${what} (${reasonInWords(why)})` : what };
}

function memory({ next_use_s, is_expected, overdue_s, is_making, stages }, now) {
  const lines = [];
  if (next_use_s !== null && !is_making) {
    const why = is_expected ? "the person speaks or types, or their turn was announced" : "as long as people take to answer";
    const late = `overdue for ${overdue_s.toFixed(1)} s: the longer the person is silent, the later it is expected`;
    lines.push({ name: "next turn", words: overdue_s ? late : `expected in ${next_use_s.toFixed(1)} s: ${why}` });
  }
  stages.forEach(({ stage, moved, preload }, index) => {
    for (const one of [preload, moved]) {
      if (one) lines.push({ index, name: `${stage} KV`, words: kv(one, now) });
    }
  });
  return lines;
}

function kv({ what, blocks, why, at }, now) {
  if (!what) return why;
  const ago = now - at < 1 ? "now" : `${Math.round(now - at)} s ago`;
  return `${blocks} block${blocks === 1 ? "" : "s"} ${MOVES[what].replace("@", ago)}${why ? `: ${why}` : ""}`;
}

function line({ index, name, label, lead, state, words }) {
  const item = made("li");
  item.append(made("span", index === undefined ? "plain" : `key stage-${index}`, name));
  if (state) {
    const dry = made("span", "", lead);
    dry.title = "When the listener, or the reader, runs dry if this stage makes no more";
    const group = made("b", "", label);
    group.title = "How urgent it is, as the step policy names it";
    item.append(group, dry);
  }
  item.append(made("span", state === "held" ? "held" : "", words));
  return item;
}
