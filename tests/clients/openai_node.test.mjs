// OpenAI's own client for Node.js, with what it builds on top of the API: helpers that parse,
// gather streams and run tools. The model answers by the script in test_openai_node.py.
import assert from 'node:assert/strict';
import test from 'node:test';

import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const client = new OpenAI({
  baseURL: `${process.env.CAUDAL_URL}/v1`,
  apiKey: process.env.CAUDAL_KEY,
  maxRetries: 0,
});
const model = 'smollm2';
const messages = [{ role: 'user', content: 'hi' }];
const Person = z.object({ name: z.string(), age: z.number().int() });
const Command = z.object({ command: z.string() });
const ran = [];
const runnable = {
  type: 'function',
  function: {
    name: 'Bash',
    description: 'Runs a command',
    parameters: { type: 'object', properties: { command: { type: 'string' } } },
    parse: JSON.parse,
    function: ({ command }) => {
      ran.push(command);
      return 'hello-42';
    },
  },
};

test('models', async () => {
  const ids = [];
  for await (const each of client.models.list()) ids.push(each.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});

test('chat: text and its raw answer', async () => {
  const { data, response, request_id } = await client.chat.completions
    .create({ model, messages })
    .withResponse();
  assert.equal(data.choices[0].message.content, 'plain answer');
  assert.equal(response.status, 200);
  assert.ok(request_id);
});

test('chat: a gathered stream', async () => {
  const stream = client.chat.completions.stream({
    model,
    messages,
    stream_options: { include_usage: true },
  });
  let text = '';
  stream.on('content', (delta) => (text += delta));
  const whole = await stream.finalChatCompletion();
  assert.equal(whole.choices[0].message.content, 'plain answer');
  assert.equal(text, 'plain answer');
  assert.ok((await stream.totalUsage()).completion_tokens > 0);
});

test('chat: a parsed answer', async () => {
  const response_format = zodResponseFormat(Person, 'person');
  const answer = await client.chat.completions.parse({ model, messages, response_format });
  Person.parse(answer.choices[0].message.parsed);
});

test('chat: a parsed call', async () => {
  const tools = [zodFunction({ name: 'Bash', parameters: Command })];
  const answer = await client.chat.completions.parse({ model, messages, tools });
  Command.parse(answer.choices[0].message.tool_calls[0].function.parsed_arguments);
});

for (const stream of [false, true]) {
  test(`chat: tools that the client runs, stream ${stream}`, async () => {
    ran.length = 0;
    const runner = client.chat.completions.runTools({ model, messages, tools: [runnable], stream });
    assert.equal(await runner.finalContent(), 'The tool said hello-42.');
    assert.equal(ran.length, 1);
  });
}

test('chat: an aborted stream', async () => {
  const long = [{ role: 'user', content: 'long' }];
  const stream = await client.chat.completions.create({ model, messages: long, stream: true });
  for await (const _ of stream) break;
});

test('responses: text, parsed and gathered', async () => {
  const answer = await client.responses.create({ model, input: 'hi' });
  assert.equal(answer.output_text, 'plain answer');
  const text = { format: zodTextFormat(Person, 'person') };
  Person.parse((await client.responses.parse({ model, input: 'hi', text })).output_parsed);
  const whole = await client.responses.stream({ model, input: 'hi' }).finalResponse();
  assert.equal(whole.output_text, 'plain answer');
});

test('responses: the store', async () => {
  const first = await client.responses.create({ model, input: 'hi' });
  assert.equal((await client.responses.retrieve(first.id)).id, first.id);
  const items = [];
  for await (const item of client.responses.inputItems.list(first.id)) items.push(item);
  assert.equal(items.length, 1);
  const next = { model, input: 'again', previous_response_id: first.id };
  assert.equal((await client.responses.create(next)).output_text, 'plain answer');
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test('completions, whole and streamed', async () => {
  const answer = await client.completions.create({ model, prompt: 'hi' });
  assert.equal(answer.choices[0].text, 'plain answer');
  let text = '';
  for await (const chunk of await client.completions.create({ model, prompt: 'hi', stream: true }))
    text += chunk.choices[0]?.text ?? '';
  assert.equal(text, 'plain answer');
});

test('embeddings, which the client asks for in base64', async () => {
  const answer = await client.embeddings.create({ model, input: ['x', 'y'] });
  assert.equal(answer.data.length, 2);
  assert.equal(typeof answer.data[0].embedding[0], 'number');
});

test('errors are of the right kinds', async () => {
  const none = new OpenAI({ baseURL: client.baseURL, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(none.models.list(), OpenAI.AuthenticationError);
  const wrong = { model: 'gpt-4', messages };
  await assert.rejects(client.chat.completions.create(wrong), OpenAI.NotFoundError);
  const hot = { model, messages, temperature: -1 };
  await assert.rejects(client.chat.completions.create(hot), OpenAI.BadRequestError);
});
