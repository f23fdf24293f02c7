// The console put together: buttons and keys to the conversation, the feed to its panels.

import { Conversation } from "./conversation.js";
import { Decisions } from "./decisions.js";
import { Policies } from "./policies.js";
import { Feed } from "./feed.js";
import { Images } from "./images.js";
import { Microphone, whyNoMicrophone } from "./microphone.js";
import { RATE_HZ, toBase64 } from "./pcm.js";
import { Sessions } from "./sessions.js";
import { Settings } from "./settings.js";
import { Tabs } from "./tabs.js";
import { Transcript } from "./transcript.js";
import { Typing } from "./typing.js";
import { Wire } from "./wire.js";

const MIN_SPEECH_S = 0.1;
const HOLD_MS = 350; // a longer press is "hold to talk", a shorter one toggles
const STATES = {
  connecting: "Connecting", offline: "Offline", ready: "Ready", listening: "Listening",
  waiting: "Waiting", replying: "Replying", loading: "Loading", full: "Full", strained: "Busy", restarting: "Restarting", locked: "Locked",
  dead: "Broken",
};
const HEADLINES = {
  offline: "No connection", loading: "The model is loading", full: "All places are taken", strained: "Live listeners are about to run dry", dead: "The engine is broken",
  restarting: "One moment", locked: "This server asks for a key",
};
const HOW = {
  detected: ["Press the round button and talk; the reply comes when you have finished, and stops when you interrupt it.",
    "Space opens and closes the microphone · / to type · Enter sends · Esc stops"],
  manual: ["Hold the round button while you speak, or tap it to start and tap again to send. You can type as well; the answer is spoken either way.",
    "Hold space to talk · / to type · Enter sends · Esc stops"],
};

const $ = (id) => document.getElementById(id);
const page = {
  status: $("status"), model: $("model"), empty: $("empty"), headline: $("headline"), how: $("how"), error: $("error"), dismiss: $("dismiss"),
  talk: $("talk"), form: $("type"), text: $("text"), send: $("send"), stop: $("stop"), hint: $("hint"), attach: $("attach"),
};

let connected = false;
let trouble = null; // {state, words} while there is no session
let listening = false; // the microphone is wanted
let spokenS = 0;
let model = null; // as the server lists it

const wire = new Wire((event) => conversation.receive(event), connection);
const transcript = new Transcript({ transcript: $("transcript"), scroll: $("scroll"), announcer: $("announcer") });
const conversation = new Conversation(wire, transcript, { onChange: show, onComplaint: complain, onSession: settled });
const settings = new Settings({
  settings: $("settings"), voice: $("voice"), instructions: $("instructions"), turns: $("turns"),
  minSpeech: $("min-speech"), transcribe: $("transcribe"), written: $("transcribe-note"), note: $("settings-note"), open: $("open-settings"),
}, conversation);
const images = new Images({ images: $("images"), file: $("file"), attach: page.attach, panel: $("talk-panel") }, (words) => {
  complain(words);
  show();
});
const microphone = new Microphone((pcm, level) => {
  spokenS += pcm.length / RATE_HZ;
  conversation.appended(pcm.length / RATE_HZ);
  wire.send("input_audio_buffer.append", { audio: toBase64(pcm) });
  page.talk.style.setProperty("--level", Math.min(1, level * 6).toFixed(2));
});
const typing = new Typing(() => conversation.advise());
const tabs = new Tabs(document.body, [$("tab-talk"), $("tab-sessions"), $("tab-decisions")]);
const sessions = new Sessions({
  sessions: $("sessions"), none: $("no-sessions"), pools: $("pools"), legend: $("legend"), count: $("num-sessions"),
});
const decisions = new Decisions({ decisions: $("decisions"), stage: $("stage"), pause: $("pause"), rate: $("rate") });
const policies = new Policies(document.querySelector("#policies ul"));
const feed = new Feed(seen, unseen);

// What the page shows.

function show() {
  const { active, wanted, player } = conversation;
  const state = !connected ? trouble?.state ?? "connecting"
    : player.playing ? "replying"
    : active || wanted ? "waiting"
    : listening ? "listening"
    : "ready";
  if (page.status.dataset.state !== state) {
    page.status.dataset.state = state;
    page.status.lastElementChild.textContent = STATES[state];
  }
  const detects = conversation.session ? conversation.turnDetection : settings.chosen.turns !== "manual";
  const how = detects ? "detected" : "manual";
  [page.how.textContent, page.hint.textContent] = HOW[how];
  page.headline.textContent = HEADLINES[state] ?? "Say something";
  if (trouble) page.how.textContent = trouble.words;
  page.talk.setAttribute("aria-pressed", listening);
  page.talk.setAttribute("aria-label", how === "manual" ? "Talk: hold to speak, or press to start and press again to send"
    : listening ? "Close the microphone" : "Open the microphone");
  page.talk.disabled = page.text.disabled = page.attach.disabled = !connected;
  page.send.disabled = !connected || !(page.text.value.trim() || images.urls.length);
  page.stop.disabled = !connected || !(active || player.playing);
  page.empty.hidden = !transcript.empty;
}

function complain(words) {
  page.error.hidden = !words;
  page.error.firstElementChild.textContent = words ?? "";
  transcript.follow(); // there is less room for it
}

function connection(state, words, listed) {
  connected = state === "open";
  trouble = connected ? null : { state, words };
  if (connected || state === "full" || state === "strained") feed.begin(); // it needs no session
  else unseen(); // known before the feed falls silent; if it does not, it shows all again
  if (connected) {
    transcript.divide("A new session: the model does not know what stands above.");
    model = listed;
    page.model.textContent = page.model.title = model.id;
    page.attach.hidden = !model.inputs.includes("image");
    complain(null);
  } else {
    conversation.lost();
    listening = false;
    microphone.stop();
    complain(transcript.empty ? null : words); // else it is said in the middle of the page
  }
  show();
}

function settled(session, refused) {
  sessions.own = session?.id ?? null;
  if (session && session.id !== settled.known) {
    settled.known = session.id;
    settings.begin(model);
  }
  settings.heard(session, refused);
}

function seen(snapshot) {
  const { makers, stages } = snapshot;
  const others = stages.map(({ stage }) => stage).filter((stage) => !makers.includes(stage));
  if (makers.join() !== decisions.stages.join()) {
    sessions.name(makers);
    decisions.offer(makers, others);
  }
  sessions.show(snapshot);
  decisions.take(snapshot, sessions.own);
  policies.take(snapshot);
}

function unseen() {
  sessions.lost();
  decisions.lost();
}

// What the person does.

async function startTalking() {
  if (listening || !connected) return;
  complain(null);
  conversation.player.wake();
  if (!conversation.turnDetection) conversation.halt();
  listening = true;
  spokenS = 0;
  show();
  try {
    await microphone.open();
  } catch (error) {
    listening = false;
    complain(whyNoMicrophone(error));
    return show();
  }
  if (!listening) return;
  const urls = images.take();
  if (urls.length) {
    transcript.said("", urls);
    conversation.addItem("", urls);
  }
  microphone.start();
}

async function stopTalking() {
  if (!listening) return;
  listening = false;
  page.talk.style.setProperty("--level", 0);
  await microphone.stop();
  if (conversation.turnDetection) return show();
  if (spokenS < MIN_SPEECH_S) {
    wire.send("input_audio_buffer.clear");
    complain("That was too short: hold the button while you speak.");
    return show();
  }
  conversation.commit(spokenS);
}

function toggleTalking() {
  return listening ? stopTalking() : startTalking();
}

let pressedAt = 0;
page.talk.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  page.talk.setPointerCapture(event.pointerId);
  pressedAt = listening ? 0 : performance.now();
  toggleTalking();
});
for (const kind of ["pointerup", "pointercancel"]) {
  page.talk.addEventListener(kind, () => {
    const held = pressedAt && performance.now() - pressedAt > HOLD_MS;
    pressedAt = 0;
    if (held && !conversation.turnDetection) stopTalking();
  });
}
page.talk.addEventListener("click", (event) => event.detail === 0 && toggleTalking()); // 0: by keyboard
page.talk.addEventListener("contextmenu", (event) => event.preventDefault());

page.form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = page.text.value.trim();
  if (!connected || !(text || images.urls.length)) return;
  complain(null);
  conversation.halt();
  conversation.player.wake();
  page.text.value = "";
  conversation.type(text, images.take());
});
page.text.addEventListener("input", () => {
  if (connected && page.text.value.trim()) typing.typed(performance.now());
  show();
});
page.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    page.form.requestSubmit();
  }
});
page.stop.addEventListener("click", () => conversation.halt());
page.dismiss.addEventListener("click", () => complain(null));

// Keys that work anywhere but where one writes or chooses.

const WRITES = "input, textarea, select";
const BUSY = `${WRITES}, button`;

addEventListener("keydown", (event) => {
  if ($("settings").open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return conversation.halt();
  const within = (kinds) => event.target.closest?.(kinds);
  if (event.key === "/" && !within(WRITES)) {
    event.preventDefault();
    tabs.choose("talk");
    page.text.focus();
  } else if (event.code === "Space" && !within(BUSY)) {
    event.preventDefault();
    if (!event.repeat) conversation.turnDetection ? toggleTalking() : startTalking();
  }
});
addEventListener("keyup", (event) => {
  if (event.code === "Space" && !event.target.closest?.(BUSY) && !conversation.turnDetection) stopTalking();
});

show();
wire.connect();
