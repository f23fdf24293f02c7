// The ear: a microphone that yields 24 kHz PCM16 in pieces, with the browser's echo cancellation.

import { RATE_HZ } from "./pcm.js";

const IDLE_MS = 30000; // an unused microphone is given back
const FLUSH_MS = 200;

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
      setTimeout(resolve, FLUSH_MS);
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

export function whyNoMicrophone(error) {
  if (error.name === "NotAllowedError") return "The browser does not let this page use the microphone.";
  return error.name === "NotFoundError" ? "No microphone was found." : error.message;
}
