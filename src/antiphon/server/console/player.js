// The mouth: pieces of 24 kHz audio by item, played without gaps, with the exact place that was heard.

import { RATE_HZ, floats } from "./pcm.js";

const CUT_MS = 500; // an audio thread that does not answer within this has played nothing

export class Player {
  // onProgress({item, playedMs, over}): while an item plays, and once when it has been played to its end
  constructor(onProgress) {
    this.onProgress = onProgress;
    this.item = null; // what is queued or playing last
    this.playing = false;
    this.cuts = [];
  }

  // Must first be called from a press or a key: browsers keep pages silent until then.
  async wake() {
    this.ready ??= this.open();
    await this.ready;
    if (this.context.state === "suspended") await this.context.resume();
  }

  async open() {
    this.context = new AudioContext({ sampleRate: RATE_HZ });
    await this.context.audioWorklet.addModule("playback.js");
    this.node = new AudioWorkletNode(this.context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.port.onmessage = ({ data }) => this.hear(data);
    this.node.connect(this.context.destination);
  }

  add(item, base64) {
    const samples = floats(base64);
    this.item = item;
    this.playing = true;
    this.post({ do: "add", item, samples }, [samples.buffer]);
  }

  end(item) {
    if (this.item === item) this.post({ do: "end", item });
  }

  // Silence at once. Resolves to {item, playedMs} of what was playing, or null.
  async cut() {
    if (!this.playing) return null;
    this.playing = false;
    const item = this.item;
    const cut = new Promise((resolve) => {
      this.cuts.push(resolve);
      setTimeout(() => this.cuts[0] === resolve && this.hear({ kind: "cut", item: null, played: 0 }), CUT_MS);
    });
    this.post({ do: "cut" });
    const data = await cut;
    return { item, playedMs: data.item === item ? this.heardMs(data.played) : 0 };
  }

  post(message, transfer = []) {
    this.wake().then(() => this.node.port.postMessage(message, transfer)).catch(() => this.silent(message));
  }

  // Without a voice of its own the page still reads along.
  silent(message) {
    if (message.do === "cut") this.cuts.shift()?.({ item: null, played: 0 });
  }

  hear(data) {
    if (data.kind === "cut") return this.cuts.shift()?.(data);
    if (this.cuts.length) return; // said before it heard of the cut
    const over = data.kind === "end";
    if (over && data.item === this.item) this.playing = false;
    this.onProgress({ item: data.item, playedMs: over ? (1000 * data.played) / RATE_HZ : this.heardMs(data.played), over });
  }

  // What has left the device, not only the page.
  heardMs(played) {
    return Math.max(0, Math.round(1000 * (played / RATE_HZ - (this.context.outputLatency || 0))));
  }
}
