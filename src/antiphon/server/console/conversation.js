// One conversation as the page lives it: server events in, words and sound out; what was played is reported,
// and what was interrupted is cut to what was heard.

import { RATE_HZ } from "./pcm.js";
import { Player } from "./player.js";

const ACK_EVERY_MS = 200;

export class Conversation {
  // onChange() when anything that the page shows as state has changed; onComplaint(words);
  // onSession(session, refused event id or null) when settings are known anew or were refused
  constructor(wire, transcript, { onChange, onComplaint, onSession }) {
    Object.assign(this, { wire, transcript, onChange, onComplaint, onSession });
    this.player = new Player((progress) => this.played(progress));
    this.numEvents = 0;
    this.forget();
  }

  forget() {
    this.session = null;
    this.active = null; // id of the running response, or "asked" until the server names it
    this.wanted = false; // a response is to be asked for when the running one has ended
    this.askedAt = null;
    this.saysTurn = false; // what is waited for is counted from a turn's end, not from that of what was said
    this.appendedMs = 0; // of sound that the session was sent
    this.replies = new Map(); // by response id
    this.byItem = new Map();
    this.spoken = new Map(); // what the person said, by item id
    this.uncommitted = null; // a spoken message that has no id yet
    this.hearing = null; // what the server's turn detection is listening to
    this.quiet = new Set(); // ids of events whose refusal nobody needs to read
  }

  get turnDetection() {
    return this.session?.audio?.input?.turn_detection ?? null;
  }

  // -- what the person does ------------------------------------------------------------------------

  type(text, images) {
    this.transcript.said(text, images);
    this.addItem(text, images);
    this.ask();
  }

  addItem(text, images) {
    const pictures = images.map((image_url) => ({ type: "input_image", image_url }));
    const words = text ? [{ type: "input_text", text }] : [];
    const item = { type: "message", role: "user", content: [...pictures, ...words] };
    this.wire.send("conversation.item.create", { item });
  }

  appended(seconds) {
    this.appendedMs += 1000 * seconds;
  }

  // The person types: their turn is coming.
  advise() {
    if (this.session?.x_extensions?.includes("antiphon.advise")) this.sendQuietly("antiphon.advise", {});
  }

  commit(seconds) {
    this.uncommitted = this.transcript.said("Spoken message", [], `${seconds.toFixed(1)} s`);
    this.wire.send("input_audio_buffer.commit");
    this.ask();
  }

  ask() {
    if (this.active) {
      this.wanted = true; // one reply at a time: asked again when the running one has ended
    } else {
      this.wanted = false;
      this.active = "asked";
      this.askedAt = performance.now();
      this.saysTurn = false;
      this.wire.send("response.create");
    }
    this.onChange();
  }

  // The person wants no more of this reply.
  halt() {
    if (this.active && this.active !== "asked") this.wire.send("response.cancel", { response_id: this.active });
    this.interrupt("stopped");
  }

  // Silence at once; the server learns how much was heard. A reply that runs says itself how it ended.
  async interrupt(words) {
    const running = this.replies.get(this.active);
    if (running) running.silenced = true;
    if (running?.bubble.spoken && !running.item) running.bubble.silence(); // not a word of it was heard
    const cut = await this.player.cut();
    const reply = cut && this.byItem.get(cut.item);
    if (reply) {
      reply.silenced = true;
      reply.bubble.progress({ playedMs: cut.playedMs });
      reply.bubble.silence();
      if (reply.done) reply.bubble.fact(words);
      this.ack(reply, cut.playedMs);
      this.sendQuietly("conversation.item.truncate", {
        item_id: cut.item, content_index: 0, audio_end_ms: Math.min(cut.playedMs, Math.floor(reply.totalMs)),
      });
    }
    this.onChange();
  }

  // Like `wire.send`; an error in answer is not shown. Returns the event's id.
  sendQuietly(type, fields) {
    const event_id = `console_${++this.numEvents}`;
    this.quiet.add(event_id);
    this.wire.send(type, { event_id, ...fields });
    return event_id;
  }

  // -- what the server says ------------------------------------------------------------------------

  receive(event) {
    HANDLERS[event.type]?.call(this, event);
    this.onChange();
  }

  lost() {
    for (const reply of this.replies.values()) if (!reply.done) reply.bubble.close("lost with the connection");
    this.player.cut();
    this.forget();
  }

  heardOf(session) {
    this.session = session;
    this.onSession(session, null);
  }

  begin({ response }) {
    const askedAt = this.askedAt ?? performance.now();
    this.active = response.id;
    this.askedAt = null;
    const bubble = this.transcript.reply();
    this.replies.set(response.id, { id: response.id, bubble, askedAt, saysTurn: this.saysTurn, totalMs: 0, ackedAt: 0, silenced: false, done: false });
  }

  write({ type, response_id, delta }) {
    this.replies.get(response_id)?.bubble.write(delta, type !== "response.output_text.delta");
    this.transcript.follow();
  }

  sound({ response_id, item_id, delta }) {
    const reply = this.replies.get(response_id);
    if (!reply || reply.silenced) return;
    if (!reply.item) {
      reply.item = item_id;
      this.byItem.set(item_id, reply);
      const seconds = `${((performance.now() - reply.askedAt) / 1000).toFixed(2)} s`;
      reply.bubble.fact(reply.saysTurn ? `first sound ${seconds} after your turn's end` : `first sound after ${seconds}`);
    }
    reply.totalMs += (1000 * bytesOf(delta)) / 2 / RATE_HZ;
    this.player.add(item_id, delta);
    reply.bubble.progress({ totalMs: reply.totalMs });
  }

  played({ item, playedMs, over }) {
    const reply = this.byItem.get(item);
    if (!reply || reply.silenced) return;
    reply.bubble.progress({ playedMs: over ? reply.totalMs : playedMs });
    if (over || performance.now() - reply.ackedAt >= ACK_EVERY_MS) this.ack(reply, playedMs);
    if (over) this.onChange();
  }

  ack(reply, playedMs) {
    if (!this.session?.x_extensions?.includes("playback.ack")) return;
    reply.ackedAt = performance.now();
    this.sendQuietly("playback.ack", {
      item_id: reply.item, response_id: reply.id, content_index: 0, played_ms: Math.round(playedMs),
    });
  }

  finish({ response }) {
    const reply = this.replies.get(response.id);
    if (this.active === response.id) this.active = null;
    if (reply) {
      reply.done = true;
      if (reply.item && !reply.silenced) this.player.end(reply.item);
      reply.bubble.close(ending(response));
      this.transcript.announce(reply.bubble.text || "The reply has no words.");
      this.transcript.follow();
    }
    if (response.status === "failed") {
      this.onComplaint(`The reply failed: ${response.status_details?.error?.message ?? "the server says no more"}`);
    }
    if (this.wanted) this.ask();
  }

  speechStarted({ item_id, audio_start_ms }) {
    if (this.turnDetection?.interrupt_response !== false) this.interrupt("interrupted");
    this.hearing?.bubble.remark("not taken as a turn");
    const bubble = this.transcript.said("Speaking …");
    this.hearing = { bubble, startMs: audio_start_ms };
    this.spoken.set(item_id, bubble);
  }

  speechStopped({ audio_end_ms }) {
    // a turn's audio begins with some before the voice, and ends with the silence that told its end. How long
    // both are is known where silence alone decides; else the turn is what is measured.
    const { silence_duration_ms, prefix_padding_ms = 0 } = this.turnDetection ?? {};
    this.saysTurn = silence_duration_ms === undefined;
    const voiceEndMs = audio_end_ms - (silence_duration_ms ?? 0);
    this.askedAt = performance.now() - Math.max(0, this.appendedMs - voiceEndMs);
    const hearing = this.hearing;
    if (!hearing) return;
    if (!hearing.bubble.transcribed) hearing.bubble.words.textContent = "Spoken message";
    const seconds = (Math.max(0, voiceEndMs - hearing.startMs - prefix_padding_ms) / 1000).toFixed(1);
    hearing.bubble.remark(this.saysTurn ? `${seconds} s with the pause after it` : `${seconds} s`);
  }

  committed({ item_id }) {
    if (this.uncommitted) this.spoken.set(item_id, this.uncommitted);
    this.uncommitted = this.hearing = null;
  }

  failed({ error }) {
    if (this.quiet.delete(error.event_id)) return this.onSession(this.session, error.event_id);
    if (error.code === "response_cancel_not_active") return;
    if (this.active === "asked") this.active = null;
    this.onComplaint(error.message);
  }
}

const HANDLERS = {
  "session.created": function ({ session }) { this.heardOf(session); },
  "session.updated": function ({ session }) { this.heardOf(session); },
  "response.created": Conversation.prototype.begin,
  "response.output_audio_transcript.delta": Conversation.prototype.write,
  "response.output_text.delta": Conversation.prototype.write,
  "response.output_audio.delta": Conversation.prototype.sound,
  "response.done": Conversation.prototype.finish,
  "input_audio_buffer.speech_started": Conversation.prototype.speechStarted,
  "input_audio_buffer.speech_stopped": Conversation.prototype.speechStopped,
  "input_audio_buffer.committed": Conversation.prototype.committed,
  "conversation.item.input_audio_transcription.delta": function ({ item_id, delta }) {
    this.spoken.get(item_id)?.transcribe(delta, true);
    this.transcript.follow();
  },
  "conversation.item.input_audio_transcription.completed": function ({ item_id, transcript }) {
    this.spoken.get(item_id)?.transcribe(transcript, false);
  },
  error: Conversation.prototype.failed,
};

function ending({ status, status_details }) {
  if (status_details?.error?.code === "no_speech") return "nobody spoke";
  if (status === "cancelled") return status_details?.reason === "turn_detected" ? "interrupted" : "stopped";
  if (status === "failed") return "failed";
  return status === "incomplete" ? `cut off (${status_details?.reason ?? "limit"})` : "";
}

function bytesOf(base64) {
  return (base64.length / 4) * 3 - (base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0);
}
