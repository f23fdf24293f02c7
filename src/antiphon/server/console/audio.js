// Ears and mouth of the console: a microphone that yields 24 kHz PCM16, a player without gaps.

const RATE_HZ = 24000;
const LEAD_S = 0.06; // what is scheduled starts this much later, so that a late piece leaves no gap
const IDLE_MS = 30000; // an unused microphone is given back

export class Microphone {
  constructor(onPiece) {
    this.onPiece = onPiece; // (Int16Array, level 0..1), only while recording
    this.recording = false;
  }

  async open() {
    clearTimeout(this.idle);
    if (this.stream) return;
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("This page may not use a microphone: open it on localhost or over https.");
    }
    const stream = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
    try {
      [this.context, this.node] = await this.listen(stream, RATE_HZ);
    } catch {
      [this.context, this.node] = await this.listen(stream, undefined);
    }
    this.node.port.onmessage = ({ data }) => {
      if (this.recording && data.pcm.length) this.onPiece(data.pcm, data.level);
      this.flushed?.();
    };
    this.stream = stream;
  }

  async listen(stream, sampleRate) {
    const context = new AudioContext(sampleRate ? { sampleRate } : {});
    await context.audioWorklet.addModule("capture.js");
    const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
    context.createMediaStreamSource(stream).connect(node);
    return [context, node];
  }

  start() {
    this.recording = true;
  }

  // Ends recording; what the audio thread still holds is handed over first.
  async stop() {
    if (!this.recording) return;
    await new Promise((resolve) => {
      this.flushed = resolve;
      this.node.port.postMessage("flush");
      setTimeout(resolve, 200);
    });
    this.flushed = null;
    this.recording = false;
    this.idle = setTimeout(() => this.release(), IDLE_MS);
  }

  release() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.context?.close();
    this.stream = this.context = this.node = null;
  }
}

export class Player {
  constructor(onChange) {
    this.onChange = onChange; // () when playing begins or ends
    this.sources = new Set();
    this.endsAt = 0;
  }

  get playing() {
    return this.sources.size > 0;
  }

  // Must first be called from a press or a key: browsers keep pages silent until then.
  wake() {
    this.context ??= new AudioContext({ sampleRate: RATE_HZ });
    if (this.context.state === "suspended") this.context.resume();
  }

  play(base64) {
    this.wake();
    const samples = floats(base64);
    if (!samples.length) return;
    const buffer = this.context.createBuffer(1, samples.length, RATE_HZ);
    buffer.copyToChannel(samples, 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    const late = this.endsAt < this.context.currentTime;
    const at = late ? this.context.currentTime + LEAD_S : this.endsAt;
    this.endsAt = at + buffer.duration;
    source.onended = () => {
      if (this.sources.delete(source) && !this.playing) this.onChange();
    };
    this.sources.add(source);
    source.start(at);
    if (this.sources.size === 1) this.onChange();
  }

  flush() {
    const sources = [...this.sources];
    this.sources.clear();
    sources.forEach((source) => source.stop());
    this.endsAt = 0;
    this.onChange();
  }
}

export function toBase64(pcm) {
  const bytes = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

function floats(base64) {
  const text = atob(base64);
  const bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer), (value) => value / 32768);
}
