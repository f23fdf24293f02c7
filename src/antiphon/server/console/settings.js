// The settings drawer: what is chosen is kept in this browser and told to the server, which may refuse.

const KEPT = "antiphon.settings";

export class Settings {
  // `page`: {settings, voice, instructions, turns, minSpeech, transcribe, written, note, open}
  constructor(page, conversation) {
    this.page = page;
    this.conversation = conversation;
    this.asked = null; // id of the update that asks for turn detection
    this.canDetect = true; // until the server says otherwise
    this.chosen = { voice: "", instructions: "", turns: "server_vad", minSpeech: "", transcribe: null, ...kept() };
    this.hears = false; // whether a transcriber hears the person before the model answers
    page.instructions.value = this.chosen.instructions;
    page.minSpeech.value = this.chosen.minSpeech;
    this.showTurns();
    page.open.addEventListener("click", () => page.settings.showModal());
    page.settings.addEventListener("change", () => this.change());
    page.settings.addEventListener("click", (event) => event.target === page.settings && page.settings.close());
  }

  // A new session: everything is told anew.
  begin({ id, voices = [], languages = [] }) {
    this.model = id;
    this.hears = languages.length > 0;
    this.page.transcribe.checked = this.chosen.transcribe ?? this.hears;
    this.page.written.textContent = this.hears ? "As the transcriber understands it, while you speak."
      : "The model transcribes your speech beside its replies, when it has time to spare.";
    this.page.voice.replaceChildren(...voices.map((voice) => new Option(voice, voice)));
    if (voices.includes(this.chosen.voice)) this.page.voice.value = this.chosen.voice;
    this.canDetect = true;
    this.tell();
  }

  change() {
    const { voice, instructions, turns, minSpeech, transcribe } = this.page;
    this.chosen = {
      voice: voice.value, instructions: instructions.value, minSpeech: minSpeech.value,
      transcribe: transcribe.checked === this.hears ? null : transcribe.checked, // null: as the model suggests
      turns: turns.querySelector("input:checked")?.value ?? "manual",
    };
    keep(this.chosen);
    this.tell();
  }

  tell() {
    const { instructions } = this.chosen;
    const voice = this.page.voice.value;
    const audio = { input: { transcription: this.page.transcribe.checked ? { model: this.model } : null }, ...(voice ? { output: { voice } } : {}) };
    this.conversation.wire.send("session.update", { session: { type: "realtime", instructions, audio } });
    if (!this.canDetect) return;
    this.asked = this.conversation.sendQuietly("session.update", {
      session: { type: "realtime", audio: { input: { turn_detection: this.turnDetection() } } },
    });
  }

  turnDetection() {
    const { turns, minSpeech } = this.chosen;
    if (turns === "manual") return null;
    return { type: turns, ...(minSpeech === "" ? {} : { min_speech_ms: Number(minSpeech) }) };
  }

  // The server's answer. Refused is turn detection as a whole, unless it already has some.
  heard(session, refused) {
    if (refused && refused === this.asked) {
      if (!session?.audio?.input?.turn_detection) this.canDetect = false;
      this.page.note.textContent = this.canDetect
        ? "The server refused this; what it had stays." : "This server does not detect turns: hold the button while you speak.";
    } else if (!refused) {
      this.page.note.textContent = "";
    }
    if (!this.canDetect) this.page.note.textContent ||= "This server does not detect turns: hold the button while you speak.";
    this.showTurns();
  }

  showTurns() {
    const { turns, minSpeech } = this.page;
    const now = this.canDetect ? this.chosen.turns : "manual";
    for (const input of turns.querySelectorAll("input")) {
      input.checked = input.value === now;
      input.disabled = !this.canDetect && input.value !== "manual";
    }
    minSpeech.disabled = now === "manual";
  }
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {}; // storage may be forbidden, or hold what another version kept
  }
}

function keep(chosen) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(chosen));
  } catch {
    // then it is chosen again next time
  }
}
