// The socket: connects, reconnects, says in words why it cannot. Knows the protocol's envelope, not its meaning.

const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const LOADING_MS = 1000; // how far it is, is shown

export class Wire {
  constructor(onEvent, onState) {
    this.onEvent = onEvent; // (event)
    this.onState = onState; // (state, words or null, model or null); "open", or why it is not
    this.tries = 0;
  }

  get open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  async connect() {
    const { model, state, words } = await findModel();
    if (!model) return this.later(state, words);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const url = `${scheme}://${location.host}/v1/realtime?model=${encodeURIComponent(model.id)}`;
    const socket = (this.socket = new WebSocket(url, protocols()));
    socket.onopen = () => {
      this.tries = 0;
      this.onState("open", null, model);
    };
    socket.onmessage = ({ data }) => this.onEvent(JSON.parse(data));
    socket.onclose = async ({ reason }) => {
      const { state, words } = await condition();
      this.later(state, reason ? `The server ended the session: ${reason}.` : words);
    };
  }

  later(state, words) {
    this.onState(state, words, null);
    const wait = state === "loading" ? LOADING_MS : RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)];
    setTimeout(() => this.connect(), wait);
  }

  send(type, fields = {}) {
    if (this.open) this.socket.send(JSON.stringify({ type, ...fields }));
  }
}

// How a browser says who it is.
export function protocols() {
  return key() ? ["realtime", `openai-insecure-api-key.${key()}`] : ["realtime"];
}

// An API key may be given in the address as #key=…; a fragment is never sent to a server by itself.
function key() {
  return new URLSearchParams(location.hash.slice(1)).get("key");
}

async function findModel() {
  try {
    const headers = key() ? { Authorization: `Bearer ${key()}` } : {};
    const answer = await fetch("v1/models", { headers });
    const body = await answer.json();
    if (!answer.ok) return { state: "locked", words: `${body.error.message} Open this page with #key=YOUR_KEY.` };
    return body.data.length ? { model: body.data[0] } : condition();
  } catch {
    return { state: "offline", words: "The server cannot be reached." };
  }
}

// Why there is no session: {state, words}.
async function condition() {
  let status, reason;
  try {
    ({ status, reason } = await (await fetch("health")).json());
  } catch {
    return { state: "offline", words: "The server cannot be reached." };
  }
  switch (status) {
    case "loading": return { state: "loading", words: reason ? `Now: ${reason}.` : "It begins." };
    case "full":
    case "strained": return { state: status, words: `${reason} This page tries again by itself.` };
    case "restarting": return { state: "restarting", words: "The engine stopped and is being started again." };
    case "draining": return { state: "offline", words: "The server is shutting down." };
    case "alive": return { state: "offline", words: "The connection was lost." };
    default: return { state: "dead", words: reason };
  }
}
