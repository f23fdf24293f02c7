// Audio thread: plays what it is given, in order, and counts every sample of every item that left it.

const LEAD_S = 0.06; // begins, or goes on after it ran dry, with so much in hand
const REPORT_QUANTA = 8;

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this.clear();
    this.port.onmessage = ({ data }) => this[data.do](data);
  }

  clear() {
    this.queue = []; // {item, samples, at} or {item, end: true}
    this.queued = 0;
    this.item = null;
    this.played = 0;
    this.dry = true;
    this.quanta = 0;
  }

  add({ item, samples }) {
    this.queue.push({ item, samples, at: 0 });
    this.queued += samples.length;
  }

  end({ item }) {
    this.queue.push({ item, end: true });
  }

  // Silence from the next sample on; tells how far it came.
  cut() {
    this.port.postMessage({ kind: "cut", item: this.item, played: this.played });
    this.clear();
  }

  process(inputs, [[out]]) {
    if (this.dry && (this.queued >= LEAD_S * sampleRate || this.queue.some((piece) => piece.end))) this.dry = false;
    let filled = 0;
    while (!this.dry && filled < out.length) {
      const piece = this.queue[0];
      if (!piece) {
        this.dry = true;
      } else if (piece.end) {
        this.queue.shift();
        this.port.postMessage({ kind: "end", item: piece.item, played: piece.item === this.item ? this.played : 0 });
        this.item = null;
      } else {
        filled += this.take(piece, out, filled);
      }
    }
    if (this.item !== null && ++this.quanta >= REPORT_QUANTA) {
      this.quanta = 0;
      this.port.postMessage({ kind: "at", item: this.item, played: this.played, dry: this.dry });
    }
    return true;
  }

  take(piece, out, filled) {
    if (piece.item !== this.item) {
      this.item = piece.item;
      this.played = 0;
    }
    const count = Math.min(out.length - filled, piece.samples.length - piece.at);
    out.set(piece.samples.subarray(piece.at, piece.at + count), filled);
    piece.at += count;
    this.played += count;
    this.queued -= count;
    if (piece.at === piece.samples.length) this.queue.shift();
    return count;
  }
}

registerProcessor("playback", Playback);
