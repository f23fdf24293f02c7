// Tells from keystrokes that a turn is coming: at the first one, and again while the person types on. The engine expects
// the turn for some seconds after each, and for a minute at most.

const GAP_MS = 2000; // at least, between two advisories

export class Typing {
  constructor(advise) {
    this.advise = advise; // ()
    this.advisedAt = -Infinity;
  }

  // Text was typed at `now`, in milliseconds of any clock.
  typed(now) {
    if (now - this.advisedAt < GAP_MS) return;
    this.advisedAt = now;
    this.advise();
  }
}
