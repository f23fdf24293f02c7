// The console: buttons and keys to client events, server events to words on the page and sound.

import { Microphone, Player, toBase64 } from "./audio.js";
import { Wire } from "./wire.js";

const MIN_SPEECH_S = 0.1;
const HOLD_MS = 350; // a longer press is "hold to talk", a shorter one toggles
const STATES = {
  connecting: "Connecting", offline: "Offline", ready: "Ready", listening: "Listening",
  thinking: "Thinking", speaking: "Speaking",
};

const $ = (id) => document.getElementById(id);
const page = Object.fromEntries(
  ["status", "model", "voice", "voice-field", "empty", "transcript", "error", "dismiss", "talk", "type", "text",
    "send", "stop"].map((id) => [id, $(id)]),
);

let connected = false;
let everConnected = false;
let listening = false; // a press wants the microphone
let active = null; // id of the running response, or "asked" until the server names it
let muted = null; // id of a response that was stopped: nothing of it is played any more
let wanted = false; // a response is to be asked for when the running one has ended
let spokenS = 0;
const bubbles = new Map(); // response id -> list item

const player = new Player(show);
const microphone = new Microphone((pcm, level) => {
  spokenS += pcm.length / 24000;
  wire.send("input_audio_buffer.append", { audio: toBase64(pcm) });
  page.talk.style.setProperty("--level", Math.min(1, level * 6).toFixed(2));
});
const wire = new Wire(receive, connection);

function show() {
  const state = !connected ? (everConnected ? "offline" : "connecting")
    : listening ? "listening"
    : player.playing ? "speaking"
    : active || wanted ? "thinking"
    : "ready";
  if (page.status.dataset.state !== state) {
    page.status.dataset.state = state;
    page.status.lastElementChild.textContent = STATES[state];
  }
  page.talk.setAttribute("aria-pressed", listening);
  page.talk.disabled = page.text.disabled = !connected;
  page.send.disabled = !connected || !page.text.value.trim();
  page.stop.disabled = !connected || !(active || player.playing);
  page.empty.hidden = page.transcript.childElementCount > 0;
}

function complain(words) {
  page.error.hidden = !words;
  page.error.firstElementChild.textContent = words ?? "";
  follow();
}

function connection(state, words, model) {
  connected = state === "open";
  if (connected) {
    everConnected = true;
    // a press decides when a turn begins and ends, not the server's ear
    wire.send("session.update", {
      session: { type: "realtime", audio: { input: { turn_detection: null } } },
    });
    page.model.textContent = model.id;
    page.model.title = model.id;
    offerVoices(model.voices ?? []);
    complain(null);
  } else {
    for (const bubble of bubbles.values()) close(bubble, "interrupted");
    bubbles.clear();
    active = null;
    wanted = listening = false;
    microphone.stop();
    player.flush();
    complain(words);
  }
  show();
}

function offerVoices(voices) {
  const chosen = page.voice.value;
  page.voice.replaceChildren(...voices.map((voice) => new Option(voice, voice)));
  page["voice-field"].hidden = voices.length < 2;
  if (voices.includes(chosen)) page.voice.value = chosen;
  if (page.voice.value) chooseVoice();
}

function chooseVoice() {
  wire.send("session.update", {
    session: { type: "realtime", audio: { output: { voice: page.voice.value } } },
  });
}

// What the server says.

const HANDLERS = {
  "response.created": ({ response }) => {
    active = response.id;
    bubbles.set(active, bubble("assistant", "", true));
  },
  "response.output_audio_transcript.delta": (event) => write(event),
  "response.output_text.delta": (event) => write(event),
  "response.output_audio.delta": (event) => {
    if (event.response_id !== muted) player.play(event.delta);
  },
  "response.done": ({ response }) => {
    const item = bubbles.get(response.id);
    bubbles.delete(response.id);
    if (item) close(item, ending(response));
    if (response.status === "failed") complain(`The reply failed: ${response.status_details?.error?.message}`);
    active = null;
    if (wanted) ask();
  },
  error: ({ error }) => {
    if (error.code === "response_cancel_not_active") return;
    if (active === "asked") active = null;
    complain(error.message);
  },
};

function receive(event) {
  HANDLERS[event.type]?.(event);
  show();
}

function write({ response_id, delta }) {
  const item = bubbles.get(response_id);
  if (!item) return;
  item.querySelector(".dots")?.remove();
  item.firstChild.textContent += delta;
  follow();
}

function ending({ status, status_details }) {
  if (status === "cancelled") return "stopped";
  if (status === "failed") return "failed";
  return status === "incomplete" ? `cut off (${status_details?.reason ?? "limit"})` : "";
}

// What the page shows.

function bubble(role, text, waiting = false, note = "") {
  const item = document.createElement("li");
  item.className = role;
  item.append(document.createTextNode(text));
  if (waiting) {
    const dots = document.createElement("span");
    dots.className = "dots";
    dots.setAttribute("aria-label", "thinking");
    dots.append(...Array.from({ length: 3 }, () => document.createElement("span")));
    item.append(dots);
  }
  if (note) remark(item, note);
  page.transcript.append(item);
  follow(true);
  return item;
}

function close(item, note) {
  item.querySelector(".dots")?.remove();
  if (!item.textContent && !note) note = "no words";
  if (note) remark(item, note);
}

function remark(item, words) {
  const small = document.createElement("small");
  small.textContent = words;
  item.append(small);
}

// Follows the talk unless the reader has scrolled up.
function follow(always = false) {
  const box = page.transcript;
  if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
}

// What the person does.

function ask() {
  if (active) {
    wanted = true; // one reply at a time: asked again when the running one has ended
  } else {
    wanted = false;
    active = "asked";
    wire.send("response.create");
  }
  show();
}

function halt() {
  if (active && active !== "asked") {
    muted = active;
    wire.send("response.cancel", { response_id: active });
  }
  if (player.playing) player.flush();
  show();
}

async function startTalking() {
  if (listening || !connected) return;
  complain(null);
  halt();
  player.wake();
  listening = true;
  spokenS = 0;
  show();
  try {
    await microphone.open();
  } catch (error) {
    listening = false;
    complain(error.name === "NotAllowedError" ? "The browser does not let this page use the microphone."
      : error.name === "NotFoundError" ? "No microphone was found." : error.message);
    return show();
  }
  if (listening) microphone.start();
}

async function stopTalking() {
  if (!listening) return;
  listening = false;
  page.talk.style.setProperty("--level", 0);
  await microphone.stop();
  if (spokenS < MIN_SPEECH_S) {
    wire.send("input_audio_buffer.clear");
    complain("That was too short: hold the button while you speak.");
    return show();
  }
  bubble("user", "Spoken message", false, `${spokenS.toFixed(1)} s`);
  wire.send("input_audio_buffer.commit");
  ask();
}

let pressedAt = 0;
page.talk.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  page.talk.setPointerCapture(event.pointerId);
  if (listening) {
    pressedAt = 0;
    stopTalking();
  } else {
    pressedAt = performance.now();
    startTalking();
  }
});
for (const kind of ["pointerup", "pointercancel"]) {
  page.talk.addEventListener(kind, () => {
    if (pressedAt && performance.now() - pressedAt > HOLD_MS) stopTalking();
    pressedAt = 0;
  });
}
page.talk.addEventListener("click", (event) => {
  if (event.detail === 0) listening ? stopTalking() : startTalking(); // 0: by keyboard
});
page.talk.addEventListener("contextmenu", (event) => event.preventDefault());

page.type.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = page.text.value.trim();
  if (!text || !connected) return;
  complain(null);
  halt();
  player.wake();
  page.text.value = "";
  bubble("user", text);
  wire.send("conversation.item.create", {
    item: { type: "message", role: "user", content: [{ type: "input_text", text }] },
  });
  ask();
});
page.text.addEventListener("input", show);
page.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    page.type.requestSubmit();
  }
});
page.voice.addEventListener("change", chooseVoice);
page.stop.addEventListener("click", halt);
page.dismiss.addEventListener("click", () => complain(null));
addEventListener("keydown", (event) => event.key === "Escape" && halt());

show();
wire.connect();
