// Audio thread: microphone samples to 24 kHz PCM16 in pieces of 40 ms, with their level.

const RATE_HZ = 24000;
const PIECE = 960;

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.step = sampleRate / RATE_HZ;
    this.position = 0;
    this.sum = 0;
    this.count = 0;
    this.piece = new Int16Array(PIECE);
    this.filled = 0;
    this.port.onmessage = () => this.flush();
  }

  process([input]) {
    for (const sample of input[0] ?? []) {
      // browsers that cannot record at 24 kHz: the mean over each output sample's span
      this.sum += sample;
      this.count += 1;
      this.position += 1;
      if (this.position >= this.step) {
        this.position -= this.step;
        this.put(this.sum / this.count);
        this.sum = this.count = 0;
      }
    }
    return true;
  }

  put(value) {
    this.piece[this.filled++] = Math.round(Math.max(-1, Math.min(1, value)) * 32767);
    if (this.filled === PIECE) this.flush();
  }

  flush() {
    const pcm = this.piece.slice(0, this.filled);
    this.filled = 0;
    let power = 0;
    for (const value of pcm) power += value * value;
    const level = pcm.length ? Math.sqrt(power / pcm.length) / 32768 : 0;
    this.port.postMessage({ pcm, level }, [pcm.buffer]);
  }
}

registerProcessor("capture", Capture);
