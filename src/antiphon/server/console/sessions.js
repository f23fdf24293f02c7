// Everybody's sessions: what each is doing, and how far every stage runs ahead of what is heard.

import { Reasons } from "./reasons.js";
import { made } from "./transcript.js";
import { SOURCES } from "./words.js";

const LEAST_SCALE_S = 4;

export class Sessions {
  // `page`: {sessions, none, pools, legend, count}
  constructor(page) {
    this.page = page;
    this.rows = new Map();
    this.body = page.sessions.querySelector("tbody");
    this.own = null; // id of this page's own session
    this.scale = LEAST_SCALE_S;
  }

  show({ at, sessions, stages }) {
    this.pools(stages);
    const bars = sessions.map((session) => this.frontiers(session));
    this.scale = scaleFor(Math.max(0, ...bars.flat().map(({ end }) => end)));
    const here = new Set(sessions.map(({ session }) => session));
    for (const [id, row] of this.rows) {
      if (here.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    sessions.forEach((session, index) => this.row(session).show(session, bars[index], this.scale, session.session === this.own, at));
    const own = this.rows.get(this.own)?.element;
    if (own && this.body.firstElementChild !== own) this.body.prepend(own);
    this.page.none.hidden = sessions.length > 0;
    put(this.page.none, "Nobody is connected.");
    this.page.count.textContent = sessions.length || "";
  }

  lost() {
    this.show({ sessions: [], stages: [] });
    this.page.none.textContent = "The engine's feed is not there; trying again.";
  }

  row(session) {
    let row = this.rows.get(session.session);
    if (!row) {
      row = new Row(session);
      this.rows.set(session.session, row);
      this.body.append(row.element);
    }
    return row;
  }

  // Seconds per stage. Text is as far as the listener can hear if no more is written, and no less far than the
  // sound that was made of it.
  frontiers({ stages, is_making, generated_s, played_s }) {
    const sound = Math.max(generated_s, ...stages.map(({ audio_s }) => audio_s ?? 0));
    return stages.map(({ stage, audio_s, lead_s }) => ({
      stage, end: audio_s ?? (is_making && lead_s !== null ? Math.max(sound, played_s + lead_s) : sound),
    }));
  }

  pools(stages) {
    const names = stages.map(({ stage }) => stage).join();
    if (names !== this.names) {
      this.names = names;
      this.page.pools.replaceChildren(...stages.map(() => pool()));
    }
    stages.forEach(({ stage, running, waiting, kv_blocks, kv_blocks_free, kv_blocks_idle }, index) => {
      const [name, meter, words] = this.page.pools.children[index].children;
      const [requests, blocks] = words.children;
      const used = kv_blocks - kv_blocks_free - kv_blocks_idle;
      name.textContent = stage;
      meter.style.setProperty("--used", `${(100 * used) / kv_blocks}%`);
      meter.style.setProperty("--kept", `${(100 * (used + kv_blocks_idle)) / kv_blocks}%`);
      put(requests, `${running} running · ${waiting} waiting`);
      put(blocks, `${used} of ${kv_blocks} blocks in use${kv_blocks_idle ? `, ${kv_blocks_idle} kept` : ""}`);
      blocks.title = "Kept: the KV of sessions that do nothing now, until its room is needed";
    });
  }

  // Stage names are the model's own; their colours go by place.
  name(stages) {
    this.page.legend.replaceChildren(...[...stages, "heard"].map((stage, index) => {
      const item = made("li", stage === "heard" ? "key heard" : `key stage-${index}`, stage);
      return item;
    }));
  }
}

class Row {
  constructor({ session, stages }) {
    this.element = made("tr");
    this.element.dataset.session = session;
    this.who = made("th", "who");
    this.who.scope = "row";
    this.who.setAttribute("role", "rowheader"); // said aloud: on phones the rows are drawn as cards
    this.element.setAttribute("role", "row");
    this.phase = made("span", "phase");
    this.track = made("div", "track");
    this.track.setAttribute("role", "img");
    this.lanes = stages.map((_, index) => made("i", `lane stage-${index}`));
    this.cursor = made("b", "cursor");
    this.track.append(...this.lanes, this.cursor);
    this.far = made("span", "far");
    this.ttfp = made("td", "number");
    this.kv = made("td", "kv");
    const phase = made("td");
    phase.append(this.phase);
    const time = made("td", "time");
    this.reasons = new Reasons();
    time.append(this.track, this.far);
    for (const cell of [phase, time, this.ttfp, this.kv]) cell.setAttribute("role", "cell");
    this.element.append(this.who, phase, time, this.ttfp, this.kv, this.reasons.element);
  }

  show(shown, frontiers, scale, own, now) {
    const { session, phase, source, generated_s, played_s, ttfp_s, waited_s, stages } = shown;
    this.reasons.show(shown, now);
    put(this.who, own ? "this page" : session.slice(-6));
    this.who.title = session;
    put(this.phase, phase);
    this.phase.dataset.phase = phase;
    const at = (seconds) => `${Math.min(100, (100 * seconds) / scale).toFixed(2)}%`;
    frontiers.forEach(({ end }, index) => {
      this.lanes[index].style.setProperty("--end", at(end));
      this.lanes[index].style.setProperty("--heard", at(Math.min(played_s, end)));
    });
    this.cursor.style.setProperty("--at", at(played_s));
    this.cursor.hidden = source === "unknown";
    const words = SOURCES[source] ?? source;
    const far = source === "unknown" ? words : `${played_s.toFixed(1)} of ${generated_s.toFixed(1)} s heard (${words})`;
    put(this.far, far);
    this.far.title = "Reported: its client says how much it has played. Estimated: from the clock alone.";
    const ahead = frontiers.map(({ stage, end }) => `${stage} at ${end.toFixed(1)} s`);
    this.track.setAttribute("aria-label", `${far}; ${ahead.join(", ")}`);
    this.track.title = this.track.getAttribute("aria-label");
    put(this.ttfp, waited_s !== null ? `${waited_s.toFixed(1)} s …` : ttfp_s === null ? "–" : `${ttfp_s.toFixed(2)} s`);
    this.ttfp.classList.toggle("waits", waited_s !== null);
    this.memory(stages);
  }

  memory(stages) {
    const kept = stages.map((stage, index) => ({ ...stage, index })).filter(({ index }) => index < stages.length - 1);
    if (this.kv.childElementCount !== kept.length) {
      this.kv.replaceChildren(...kept.map(({ index }) => made("span", `key stage-${index}`)));
    }
    kept.forEach(({ stage, kv_tokens, kv_blocks }, index) => {
      put(this.kv.children[index], String(kv_tokens));
      this.kv.children[index].title = `${stage}: ${kv_tokens} tokens in ${kv_blocks} blocks`;
    });
  }
}

function pool() {
  const item = made("li");
  const words = made("p");
  words.append(made("span", "quiet"), made("span", "quiet"));
  item.append(made("b"), made("i", "meter"), words);
  return item;
}

function put(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

// 4, 6, 8, 12, 16, 24 … seconds: a scale that does not jump with every frame.
function scaleFor(seconds) {
  let scale = LEAST_SCALE_S;
  while (scale < seconds) scale *= scale % 3 ? 1.5 : 4 / 3;
  return scale;
}
