// The socket: connects, reconnects, says in words why it cannot. Knows the protocol's envelope, not its meaning.

const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class Wire {
  constructor(onEvent, onState) {
    this.onEvent = onEvent; // (event)
    this.onState = onState; // ("open" | "closed", words or null, model or null)
    this.tries = 0;
  }

  get open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  async connect() {
    const { model, why } = await findModel();
    if (!model) return this.later(why);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const url = `${scheme}://${location.host}/v1/realtime?model=${encodeURIComponent(model.id)}`;
    const socket = (this.socket = new WebSocket(url, protocols()));
    socket.onopen = () => {
      this.tries = 0;
      this.onState("open", null, model);
    };
    socket.onmessage = ({ data }) => this.onEvent(JSON.parse(data));
    socket.onclose = async (event) => this.later(event.reason || (await whyNot()) || "The connection was lost.");
  }

  later(words) {
    this.onState("closed", words, null);
    setTimeout(() => this.connect(), RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)]);
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
    if (!answer.ok) return { why: `${body.error.message} Open this page with #key=YOUR_KEY.` };
    return body.data.length ? { model: body.data[0] } : { why: "The model is still loading." };
  } catch {
    return { why: "The server cannot be reached." };
  }
}

async function whyNot() {
  try {
    const answer = await fetch("ready");
    return answer.ok ? null : (await answer.json()).error.message;
  } catch {
    return "The server cannot be reached.";
  }
}
