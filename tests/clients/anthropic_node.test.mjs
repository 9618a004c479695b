// Anthropic's own client for Node.js, with the helpers that gather streams, parse and run tools.
// The model answers by the script in test_anthropic_node.py.
import assert from 'node:assert/strict';
import test from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';

const client = new Anthropic({
  baseURL: process.env.CAUDAL_URL,
  apiKey: process.env.CAUDAL_KEY,
  maxRetries: 0,
});
const base = { model: 'smollm2', max_tokens: 500 };
const messages = [{ role: 'user', content: 'hi' }];

test('models', async () => {
  const ids = [];
  for await (const each of client.models.list()) ids.push(each.id);
  assert.deepEqual(ids, ['smollm2']);
  assert.equal((await client.models.retrieve('smollm2')).type, 'model');
});

test('text, whole and gathered', async () => {
  const answer = await client.messages.create({ ...base, messages });
  assert.equal(answer.content[0].text, 'plain answer');
  assert.equal(answer.stop_reason, 'end_turn');
  const stream = client.messages.stream({ ...base, messages });
  let text = '';
  stream.on('text', (delta) => (text += delta));
  assert.equal(await stream.finalText(), 'plain answer');
  assert.equal(text, 'plain answer');
});

test('counted tokens', async () => {
  const { input_tokens } = await client.messages.countTokens({ model: base.model, messages });
  const { usage } = await client.messages.create({ ...base, messages });
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

test('a parsed answer', async () => {
  const format = zodOutputFormat(z.object({ name: z.string() }));
  const answer = await client.messages.parse({ ...base, messages, output_config: { format } });
  assert.equal(typeof answer.parsed_output.name, 'string');
});

for (const stream of [false, true]) {
  test(`tools that the client runs, stream ${stream}`, async () => {
    const ran = [];
    const Bash = betaZodTool({
      name: 'Bash',
      description: 'Runs a command',
      inputSchema: z.object({ command: z.string() }),
      run: ({ command }) => {
        ran.push(command);
        return 'hello-42';
      },
    });
    const runner = client.beta.messages.toolRunner({ ...base, messages, tools: [Bash], stream });
    let last;
    for await (const each of runner) last = stream ? await each.finalMessage() : each;
    assert.equal(last.content.at(-1).text, 'The tool said hello-42.');
    assert.equal(ran.length, 1);
  });
}

test('an aborted stream', async () => {
  const stream = client.messages.stream({ ...base, messages: [{ role: 'user', content: 'long' }] });
  for await (const _ of stream) break;
});

test('errors are of the right kinds', async () => {
  const none = new Anthropic({ baseURL: client.baseURL, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(none.messages.create({ ...base, messages }), Anthropic.AuthenticationError);
  const wrong = { ...base, model: 'llama', messages };
  await assert.rejects(client.messages.create(wrong), Anthropic.NotFoundError);
  const hot = { ...base, messages, temperature: 2 };
  await assert.rejects(client.messages.create(hot), Anthropic.BadRequestError);
});
