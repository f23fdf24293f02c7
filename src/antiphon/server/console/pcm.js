// PCM16 at the wire's rate, as base64 and as floats.

export const RATE_HZ = 24000;

export function toBase64(pcm) {
  const bytes = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

export function floats(base64) {
  const text = atob(base64);
  const bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer), (value) => value / 32768);
}
