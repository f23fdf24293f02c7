// The last steps that the engine decided, newest first; a stage's equal ones within a second are one line.

import { made } from "./transcript.js";
import { kindInWords, reasonInWords } from "./words.js";

const KEPT = 400;
const SHOWN = 80;
const MOST_NAMES = 2;
const RUN_S = 1;

export class Decisions {
  // `page`: {decisions, stage, pause, rate}
  constructor(page) {
    this.page = page;
    this.runs = [];
    this.stages = [];
    this.paused = false;
    page.stage.addEventListener("change", () => this.draw());
    page.pause.addEventListener("click", () => {
      this.paused = !this.paused;
      page.pause.textContent = this.paused ? "Go on" : "Pause";
      page.pause.setAttribute("aria-pressed", this.paused);
      this.draw();
    });
  }

  // `own`: id of this page's session
  take({ at, steps, num_steps }, own) {
    this.own = own;
    for (const step of steps) this.add(step);
    this.runs.splice(0, this.runs.length - KEPT);
    this.since ??= Math.min(at, ...steps.map((step) => step.at));
    const seconds = at - (this.last ?? at);
    this.last = at;
    this.page.rate.textContent = seconds > 0 ? `${Math.round(num_steps / seconds)} steps/s` : "";
    if (!this.paused && steps.length) this.draw();
  }

  // What was is still told; how fast it goes is not.
  lost() {
    this.last = undefined;
    this.page.rate.textContent = "";
  }

  add(step) {
    const last = this.runs.findLast(({ stage }) => stage === step.stage);
    if (last && same(last, step)) {
      last.times += 1;
      last.tokens += step.tokens;
      last.sessions = [...new Set([...last.sessions, ...step.sessions])];
    } else {
      this.runs.push({ ...step, times: 1 });
    }
  }

  // `stages`: those that make a reply, each with a colour; `others` have none
  offer(stages, others) {
    this.stages = stages;
    const chosen = this.page.stage.value;
    const all = [...others, ...stages];
    this.page.stage.replaceChildren(new Option("all stages", ""), ...all.map((stage) => new Option(stage, stage)));
    if (all.includes(chosen)) this.page.stage.value = chosen;
  }

  draw() {
    const wanted = this.page.stage.value;
    const runs = this.runs.filter(({ stage }) => !wanted || stage === wanted).slice(-SHOWN).reverse();
    this.page.decisions.replaceChildren(...runs.map((run) => this.line(run)));
  }

  line({ at, stage, kind, rows, tokens, times, reason, sessions }) {
    const line = made("li");
    const place = this.stages.indexOf(stage);
    const what = made("span", "what");
    what.append(made("b", `key ${place < 0 ? "encoder" : `stage-${place}`}`, stage), ` ${kindInWords(kind)}`);
    if (times > 1) what.append(made("em", "", ` ×${times}`));
    const size = made("span", "size", sizeInWords(kind, rows, tokens));
    const others = sessions.filter((name) => name !== this.own).map((name) => name.slice(-6));
    const names = [...(others.length < sessions.length ? ["this page"] : []), ...others];
    const who = made("span", "quiet who", names.slice(0, MOST_NAMES).join(" ") + (names.length > MOST_NAMES ? ` +${names.length - MOST_NAMES}` : ""));
    who.title = sessions.join(" ");
    line.append(made("time", "quiet", inSeconds(at - this.since)), what, size, made("span", "quiet why", reasonInWords(reason)), who);
    return line;
  }
}

// Never wider than 99.99 s: its column is narrow.
function inSeconds(seconds) {
  return `${seconds.toFixed(seconds < 99.995 ? 2 : seconds < 999.95 ? 1 : 0)} s`;
}

// A step that takes up nothing new goes on with what it has.
function sizeInWords(kind, rows, tokens) {
  if (kind === "encode") return `${rows} media`;
  return tokens ? `${count(rows, "row")} · ${count(tokens, kind === "vocode" ? "frame" : "token")}` : count(rows, "row");
}

function count(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

function same(run, step) {
  return run.kind === step.kind && run.rows === step.rows && run.reason === step.reason && step.at - run.at < RUN_S;
}
