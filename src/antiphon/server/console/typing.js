// Tells from keystrokes that a turn is coming: at the first one, and once after each pause in typing.

const PAUSE_MS = 1000;
const GAP_MS = 2000; // at least, between two advisories

export class Typing {
  constructor(advise) {
    this.advise = advise; // ()
    this.typedAt = this.advisedAt = -Infinity;
    this.due = false;
  }

  // Text was typed at `now`, in milliseconds of any clock.
  typed(now) {
    this.due ||= now - this.typedAt >= PAUSE_MS;
    this.typedAt = now;
    if (!this.due || now - this.advisedAt < GAP_MS) return;
    this.due = false;
    this.advisedAt = now;
    this.advise();
  }

  // The turn was sent: the next keystroke begins another one.
  sent() {
    this.typedAt = -Infinity;
    this.due = false;
  }
}
