// The engine as others see it: a socket that brings a snapshot about four times a second while the page is seen.

import { protocols } from "./wire.js";

const RETRY_MS = 3000;
const STALE_MS = 3000; // an engine that shows nothing for so long has stopped

export class Feed {
  constructor(onSnapshot, onLost) {
    this.onSnapshot = onSnapshot;
    this.onLost = onLost;
    document.addEventListener("visibilitychange", () => this.turn());
  }

  // From now on, whatever it meets.
  begin() {
    if (this.begun) return;
    this.begun = true;
    this.turn();
  }

  // Nobody looks at a hidden page: the engine need not show itself to it.
  turn() {
    if (!this.begun) return;
    if (document.hidden) this.socket?.close();
    else if (!this.socket) this.connect();
  }

  connect() {
    clearTimeout(this.retry);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = (this.socket = new WebSocket(`${scheme}://${location.host}/console/feed`, protocols()));
    socket.onmessage = ({ data }) => {
      clearTimeout(this.stale);
      this.stale = setTimeout(this.onLost, STALE_MS);
      this.onSnapshot(JSON.parse(data));
    };
    socket.onclose = () => {
      this.socket = null;
      clearTimeout(this.stale);
      this.onLost();
      if (!document.hidden) this.retry = setTimeout(() => this.connect(), RETRY_MS);
    };
  }
}
