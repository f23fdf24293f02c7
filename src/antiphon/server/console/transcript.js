// Both sides' words. A reply shows what was heard of it, what is still to come, and what never was heard.

import { picture } from "./images.js";

const NEAR_END_PX = 120;
const FIRST_SOUND = "From the end of what you said, the silence that ends a spoken turn included, to the first sound here. Where your pauses decide that you are done, how long the pause before your turn's end was is not known.";

let charMs = 60; // of speech for a character, until replies have shown how long theirs are

export class Transcript {
  // `page`: {transcript, scroll, announcer}
  constructor(page) {
    this.page = page;
  }

  get empty() {
    return !this.page.transcript.childElementCount;
  }

  said(words, images = [], note = "") {
    const bubble = new Said(words, images, note);
    this.show(bubble.element);
    return bubble;
  }

  reply() {
    const bubble = new Reply();
    this.show(bubble.element);
    return bubble;
  }

  show(element) {
    this.page.transcript.append(element);
    this.follow(true);
  }

  // What follows is another session.
  divide(words) {
    const last = this.page.transcript.lastElementChild;
    if (last && !last.matches(".divider")) this.show(made("li", "divider", words));
  }

  announce(words) {
    this.page.announcer.textContent = words;
  }

  // Follows the talk unless the reader has scrolled up.
  follow(always = false) {
    const box = this.page.scroll;
    if (always || box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX) box.scrollTop = box.scrollHeight;
  }
}

class Said {
  constructor(words, images, note) {
    this.element = made("li", "user");
    this.words = made("span", "", words);
    this.note = made("small", "", note);
    this.note.hidden = !note;
    const strip = made("div", "pictures");
    strip.append(...images.map((url, index) => picture(url, `Picture ${index + 1}`)));
    this.element.append(...(images.length ? [strip] : []), this.words, this.note);
    this.transcribed = false;
  }

  // Of speech, as it is recognised.
  transcribe(words, more) {
    this.words.textContent = (more && this.transcribed ? this.words.textContent : "") + words;
    this.transcribed = true;
  }

  remark(words) {
    this.note.textContent = words;
    this.note.hidden = !words;
  }
}

class Reply {
  constructor() {
    this.element = made("li", "assistant");
    this.heard = made("span", "heard");
    this.ahead = made("span", "ahead");
    this.dots = made("span", "dots");
    this.dots.setAttribute("aria-label", "thinking");
    this.dots.append(...Array.from({ length: 3 }, () => made("i")));
    this.bar = made("div", "bar");
    this.note = made("small");
    this.note.title = FIRST_SOUND;
    this.bar.hidden = this.note.hidden = true;
    this.element.append(this.dots, this.heard, this.ahead, this.bar, this.note);
    this.text = "";
    this.facts = [];
    this.totalMs = 0; // generated
    this.playedMs = 0;
    this.cut = false;
    this.whole = false; // all of its sound is there
    this.spoken = false; // its words are heard when their sound is
  }

  write(delta, spoken) {
    this.dots.remove();
    this.spoken = spoken;
    this.text += delta;
    this.draw();
  }

  // So much audio has come, so much was played, as far as they are known.
  progress({ totalMs = this.totalMs, playedMs = this.playedMs }) {
    this.totalMs = totalMs;
    this.playedMs = Math.min(playedMs, totalMs);
    this.bar.hidden = false;
    this.draw();
  }

  // Nothing after this was heard.
  silence() {
    this.cut = true;
    this.element.classList.add("cut");
    this.draw();
  }

  close(words) {
    this.dots.remove();
    if (!this.totalMs && !this.cut) this.spoken = false; // nothing of it will be heard: then it is read
    this.whole = !words && !this.cut;
    if (this.whole && this.totalMs && this.text) charMs = this.totalMs / this.text.length;
    if (!this.text && !words) words = "no words";
    this.fact(words);
  }

  fact(words) {
    if (words && !this.facts.includes(words)) this.facts.push(words); // page and server may both say why it ended
    this.draw();
  }

  draw() {
    const share = this.totalMs ? this.playedMs / this.totalMs : this.spoken ? 0 : 1;
    // words come before their sound: until all of that is there, how long it will be is estimated
    const ahead = this.whole || !this.totalMs ? 1 : Math.min(1, this.totalMs / (charMs * this.text.length));
    const said = share * ahead;
    const at = said >= 1 ? this.text.length : wordEnd(this.text, Math.round(said * this.text.length));
    this.heard.textContent = this.text.slice(0, at);
    this.ahead.textContent = this.text.slice(at);
    this.ahead.setAttribute("role", this.cut ? "deletion" : "presentation");
    this.bar.style.setProperty("--played", `${(100 * share).toFixed(1)}%`);
    const seconds = this.totalMs ? [`${(this.playedMs / 1000).toFixed(1)} of ${(this.totalMs / 1000).toFixed(1)} s heard`] : [];
    this.note.textContent = [...this.facts, ...seconds].join(" · ");
    this.note.hidden = !this.note.textContent;
  }
}

// Behind the last whole word, and the space after it.
function wordEnd(text, at) {
  return text.lastIndexOf(" ", at) + 1;
}

export function made(tag, name = "", words = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (words) element.textContent = words;
  return element;
}
