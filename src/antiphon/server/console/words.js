// What the engine counts and says in names, in plain English. A name that is not here is shown as it is.

const REASONS = { "prompts first": "prompts before replies" };
const KINDS = { mixed: "prefill + decode", vocode: "synthesis", speak: "synthesis" };
export const SOURCES = { acked: "reported", estimated: "estimated", unknown: "nothing heard yet" };
const EVENTS = {
  lead_unknown: "reply without a known lead", times_unknown: "step whose length was not known",
  first_sound_waits: "first sound for which a step had no room", prompt_spared: "prompt put off for replies about to run dry",
  left_out: "well buffered reply left out for one about to run dry, or for a first sound", held: "reply held, being far enough ahead",
  others_yield: "stage behind a reply about to run dry", urgency_unknown: "stage that told no urgency",
  next_use_unknown: "session without a known next turn", protected_taken: "session's KV taken before its coming turn",
  preload_begun: "preload begun", preload_partial: "preload of a part begun", preload_skipped: "preload left out for want of time",
  preload_held: "preload put off for a waiting request", preload_hit: "preload read by its turn", preload_late: "preload that came late",
  preload_unused: "preload lost unread", preload_unfilled: "preload without room", preload_lost: "preload whose copies failed",
  link_unknown: "copy whose length was not known", step_unknown: "step whose length was not known",
  rounds: "round", preempted: "reply preempted", brought: "KV brought back", computed: "KV computed anew",
  fcfs_begun: "turn to first come first served", starved: "step short of KV blocks", held_at_door: "request held at the door",
  throttled: "step that throttled agents",
  slow: "slow decision", suspended: "suspended", stalled: "stage stood still", raised: "raised an error", refused: "refused a request",
  untold: "words that could not be used", slow_words: "slow words", silenced: "asked for no more words", wake_in_past: "wish to be asked in the past",
};
const OBSERVED = "observed_";

export function reasonInWords(reason) {
  return REASONS[reason] ?? reason;
}

export function kindInWords(kind) {
  return KINDS[kind] ?? kind;
}

// What happened, and how often.
export function eventInWords(event, times) {
  const observed = event.startsWith(OBSERVED);
  const name = observed ? event.slice(OBSERVED.length) : event;
  const words = EVENTS[name] ?? name.replaceAll("_", " ");
  return `${observed ? "only observed: " : ""}${words} ×${times}`;
}
