// @openai/agents-realtime (JavaScript): a RealtimeSession over its WebSocket transport, nothing but the URL set.
//
//     node talk_agents.mjs URL MODEL WAV, with ANTIPHON_CLIENT set to the folder whose node_modules has the client

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';

const require = createRequire(`${process.env.ANTIPHON_CLIENT}/`);
const { RealtimeAgent, RealtimeSession, tool } = require('@openai/agents-realtime');

const STEP_MS = 40;
const STEP_BYTES = STEP_MS * 48;
const WAV_HEADER_BYTES = 44;
const [url, model, wav] = process.argv.slice(2);
const speech = readFileSync(wav).subarray(WAV_HEADER_BYTES);

const seen = new Map();
const errors = [];
const done = [];
let called = 0;

const weather = tool({
  name: 'weather',
  description: 'The weather here.',
  parameters: { type: 'object', properties: {}, required: [], additionalProperties: true },
  strict: false,
  execute: async () => {
    called += 1;
    return 'clear';
  },
});
const agent = new RealtimeAgent({ name: 'Assistant', instructions: 'Be brief.', tools: [weather] });
const session = new RealtimeSession(agent, { transport: 'websocket', tracingDisabled: true });

function fail(message) {
  console.error(message);
  process.exit(1);
}

function check(holds, message) {
  if (!holds) fail(message);
}

function count(kind) {
  return seen.get(kind) ?? 0;
}

async function until(holds, what, limitMs = 40000) {
  const end = Date.now() + limitMs;
  while (!holds()) {
    if (Date.now() > end) fail(`waited ${limitMs / 1000} s for ${what}; errors: ${JSON.stringify(errors)}`);
    await sleep(10);
  }
}

async function wait(kind, number = 1) {
  await until(() => count(kind) >= number, `${kind} (${number})`);
}

async function nextDone() {
  const number = done.length + 1;
  await until(() => done.length >= number, `response.done (${number})`);
  return done[number - 1];
}

async function speak(pcm) {
  for (let start = 0; start < pcm.length; start += STEP_BYTES) {
    const piece = pcm.subarray(start, start + STEP_BYTES);
    session.sendAudio(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.length));
    await sleep(STEP_MS);
  }
}

// As `wait`, with the microphone open in a quiet room.
async function hear(kind, number) {
  const end = Date.now() + 40000;
  while (count(kind) < number) {
    if (Date.now() > end) fail(`waited 40 s for ${kind} (${number}); errors: ${JSON.stringify(errors)}`);
    await speak(Buffer.alloc(STEP_BYTES));
  }
}

// A spoken turn; its reply is spoken over while it is made, the next one while it only plays. The session truncates
// by itself.
async function bargeIn() {
  const [ended, sounds] = [done.length, count('audio')];
  await speak(speech);
  await hear('audio', sounds + 1);
  await spokenOver();
  await hear('response.done', ended + 2);
  await spokenOver();
  await hear('response.done', ended + 3);
  check(done[ended].status === 'cancelled', `the reply spoken over was ${done[ended].status}`);
  check(count('audio_interrupted') >= 2, 'the session did not notice that it was interrupted');
}

async function spokenOver() {
  const [replies, cuts] = [count('response.created'), count('conversation.item.truncated')];
  await speak(speech);
  await hear('conversation.item.truncated', cuts + 1);
  await hear('response.created', replies + 1);
}

// The model is made to call the tool; the session runs it, and the model replies to what it found.
async function toolTurn() {
  const ended = done.length;
  const content = [{ type: 'input_text', text: 'What is the weather?' }];
  session.transport.sendEvent({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } });
  const choice = { type: 'function', name: 'weather' };
  session.transport.sendEvent({ type: 'response.create', response: { tool_choice: choice } });
  await until(() => called > 0, 'the tool to be run');
  await wait('response.done', ended + 2);
  check(called === 1, `the tool was run ${called} times`);
}

// Interrupted by hand; the turn after it is whole.
async function interruptedTurn() {
  const started = count('response.created');
  session.sendMessage('Tell me a long story.');
  await wait('response.created', started + 1);
  session.interrupt();
  await wait('response.done', started + 1);
  session.sendMessage('Never mind. Good night.');
  const response = await nextDone();
  check(response.status === 'completed', `the last turn was ${response.status}`);
}

session.on('error', (event) => errors.push(event.error ?? event));
for (const kind of ['audio', 'audio_interrupted']) session.on(kind, () => seen.set(kind, count(kind) + 1));
session.transport.on('*', (event) => {
  if (event.type === 'audio' || event.type === 'audio_interrupted') return;
  seen.set(event.type, count(event.type) + 1);
  if (event.type === 'error') errors.push(event);
  if (event.type === 'response.done') done.push(event.response);
});

await session.connect({ apiKey: 'none', url: `${url.replace('http', 'ws')}/v1/realtime?model=${model}` });
session.sendMessage('Tell me about the sea.');
const first = await nextDone();
check(first.status === 'completed', `the typed turn was ${first.status}`);
check(count('audio') > 0, 'no sound came');
await bargeIn();
await toolTurn();
await interruptedTurn();
session.close();
check(errors.length === 0, `errors: ${JSON.stringify(errors)}`);
console.log('done');
process.exit(0);
