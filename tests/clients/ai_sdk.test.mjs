// The AI SDK's ways to a model, through each of its providers that speak an API of Caudal's.
// The model answers by the script in test_ai_sdk.py; THINKS says whether it thinks first.
import assert from 'node:assert/strict';
import test from 'node:test';

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import {
  embed,
  embedMany,
  generateObject,
  generateText,
  isStepCount,
  Output,
  streamObject,
  streamText,
  tool,
  ToolLoopAgent,
} from 'ai';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;

const thinks = process.env.THINKS === 'yes';
const settings = { baseURL: `${process.env.CAUDAL_URL}/v1`, apiKey: process.env.CAUDAL_KEY };
const openai = createOpenAI(settings);
const compatible = createOpenAICompatible({
  ...settings,
  name: 'caudal',
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic(settings);
const models = {
  responses: openai.responses('smollm2'),
  chat: openai.chat('smollm2'),
  compatible: compatible.chatModel('smollm2'),
  anthropic: anthropic('smollm2'),
};

const Bash = tool({
  description: 'Runs a command',
  inputSchema: z.object({ command: z.string() }),
  execute: async () => 'hello-42',
});
const once = { maxRetries: 0 };
const person = z.object({ name: z.string(), age: z.number().int() });
const isPerson = (value) => assert.doesNotThrow(() => person.parse(value));

async function read(result) {
  const seen = { text: '', reasoning: '', parts: [] };
  for await (const part of result.fullStream) {
    if (part.type === 'error') throw part.error;
    seen.parts.push(part.type);
    if (part.type === 'text-delta') seen.text += part.text;
    if (part.type === 'reasoning-delta') seen.reasoning += part.text;
  }
  return { ...seen, usage: await result.usage, finish: await result.finishReason };
}

for (const [name, model] of Object.entries(models)) {
  // OpenAI's own chat API has no reasoning text, so its provider reads none; in responses the
  // summary is what is shown, and Caudal makes none.
  const showsThoughts = thinks && ['compatible', 'anthropic'].includes(name);
  const base = { model, ...once };

  test(`${name}: text`, async () => {
    const result = await generateText({ ...base, prompt: 'hi' });
    assert.equal(result.text, 'plain answer');
    assert.equal(result.finishReason, 'stop');
    assert.ok(result.usage.inputTokens > 0 && result.usage.outputTokens > 0);
    assert.equal(result.usage.outputTokenDetails.reasoningTokens > 0, thinks);
    assert.equal(result.reasoningText, showsThoughts ? 'let me see' : undefined);
  });

  test(`${name}: streamed text`, async () => {
    const seen = await read(streamText({ ...base, prompt: 'hi' }));
    assert.equal(seen.text, 'plain answer');
    assert.equal(seen.finish, 'stop');
    assert.ok(seen.usage.inputTokens > 0 && seen.usage.outputTokens > 0);
    assert.equal(seen.reasoning, showsThoughts ? 'let me see' : '');
  });

  test(`${name}: characters of several bytes, streamed`, async () => {
    const seen = await read(streamText({ ...base, prompt: 'unicode 🦙 \ud800' }));
    assert.equal(seen.text, 'día 🦙 日本');
  });

  test(`${name}: settings`, async () => {
    const result = await generateText({
      ...base,
      prompt: 'hi',
      maxOutputTokens: 500,
      temperature: 0.5,
      topP: 0.9,
      topK: 5,
      presencePenalty: 0.1,
      frequencyPenalty: 0.1,
      seed: 1,
      stopSequences: ['zz'],
    });
    assert.equal(result.text, 'plain answer');
  });

  test(`${name}: a stop sequence`, { skip: name === 'responses' }, async () => {
    const result = await generateText({ ...base, prompt: 'hi', stopSequences: [' answer'] });
    assert.equal(result.text, 'plain');
    assert.equal(result.finishReason, 'stop');
  });

  test(`${name}: an answer that is cut`, async () => {
    const result = await generateText({ ...base, prompt: 'long', maxOutputTokens: 20 });
    assert.equal(result.finishReason, 'length');
    assert.equal(result.usage.outputTokens, 20);
  });

  test(`${name}: a conversation with reasoning in it`, async () => {
    const result = await generateText({
      ...base,
      instructions: 'Be short.',
      messages: [
        { role: 'user', content: 'a' },
        {
          role: 'assistant',
          content: [
            { type: 'reasoning', text: 'r' },
            { type: 'text', text: 'b' },
          ],
        },
        { role: 'user', content: [{ type: 'text', text: 'c' }] },
      ],
    });
    assert.equal(result.text, 'plain answer');
  });

  test(`${name}: a tool's round trip`, async () => {
    const loop = { tools: { Bash }, stopWhen: isStepCount(3) };
    const result = await generateText({ ...base, prompt: 'go', ...loop });
    assert.equal(result.text, 'The tool said hello-42.');
    assert.equal(result.steps.length, 2);
    assert.equal(result.steps[0].finishReason, 'tool-calls');
  });

  test(`${name}: a tool's round trip, streamed`, async () => {
    const loop = { tools: { Bash }, stopWhen: isStepCount(3) };
    const seen = await read(streamText({ ...base, prompt: 'go', ...loop }));
    assert.equal(seen.text, 'The tool said hello-42.');
    assert.ok(seen.parts.includes('tool-input-delta'));
    // A step that only calls has no text.
    const first = seen.parts.slice(0, seen.parts.indexOf('tool-call'));
    assert.ok(!first.includes('text-start'), first.join());
  });

  test(`${name}: an agent`, async () => {
    const agent = new ToolLoopAgent({ ...base, tools: { Bash } });
    assert.equal((await agent.generate({ prompt: 'go' })).text, 'The tool said hello-42.');
  });

  for (const toolChoice of ['required', { type: 'tool', toolName: 'Bash' }]) {
    test(`${name}: toolChoice ${JSON.stringify(toolChoice)}`, async () => {
      const result = await generateText({ ...base, prompt: 'go', tools: { Bash }, toolChoice });
      assert.equal(result.toolCalls[0].toolName, 'Bash');
      assert.equal(typeof result.toolCalls[0].input.command, 'string');
    });
  }

  test(`${name}: toolChoice none`, async () => {
    const result = await generateText({ ...base, prompt: 'go', tools: { Bash }, toolChoice: 'none' });
    assert.equal(result.finishReason, 'stop');
    assert.deepEqual(result.toolCalls, []);
  });

  test(`${name}: a strict tool with examples`, async () => {
    const strict = tool({
      description: 'Runs a command',
      strict: true,
      inputSchema: z.object({ command: z.string() }),
      inputExamples: [{ input: { command: 'ls' } }],
    });
    const result = await generateText({ ...base, prompt: 'go', tools: { Bash: strict } });
    assert.equal(typeof result.toolCalls[0].input.command, 'string');
  });

  test(`${name}: generateObject`, async () => {
    isPerson((await generateObject({ ...base, schema: person, prompt: 'x' })).object);
  });

  test(`${name}: generateObject of an enum`, async () => {
    const kind = { output: 'enum', enum: ['cat', 'dog'] };
    assert.ok(kind.enum.includes((await generateObject({ ...base, ...kind, prompt: 'x' })).object));
  });

  test(`${name}: generateObject of an array`, async () => {
    const kind = { output: 'array', schema: person };
    assert.ok(Array.isArray((await generateObject({ ...base, ...kind, prompt: 'x' })).object));
  });

  // Anthropic's API has no JSON without a schema.
  test(`${name}: generateObject without a schema`, { skip: name === 'anthropic' }, async () => {
    const { object } = await generateObject({ ...base, output: 'no-schema', prompt: 'x' });
    assert.equal(typeof object, 'object');
  });

  test(`${name}: streamObject`, async () => {
    const result = streamObject({ ...base, schema: person, prompt: 'x', onError() {} });
    let count = 0;
    for await (const _ of result.partialObjectStream) count++;
    isPerson(await result.object);
    assert.ok(count > 0);
  });

  test(`${name}: Output.object`, async () => {
    const output = Output.object({ schema: person });
    isPerson((await generateText({ ...base, output, prompt: 'x' })).output);
  });

  test(`${name}: Output.object, streamed`, async () => {
    const output = Output.object({ schema: person });
    const result = streamText({ ...base, output, prompt: 'x' });
    for await (const _ of result.partialOutputStream);
    isPerson(await result.output);
  });

  for (const reasoning of ['none', 'low', 'high']) {
    test(`${name}: reasoning ${reasoning}`, async () => {
      const result = await generateText({ ...base, prompt: 'hi', reasoning });
      assert.equal(result.text, 'plain answer');
      // In responses the provider sends no effort to a model that it doesn't know.
      if (reasoning === 'none' && name !== 'responses') {
        assert.equal(result.usage.outputTokenDetails.reasoningTokens, 0);
      }
    });
  }

  test(`${name}: an answer that nobody waits for`, async () => {
    const abort = new AbortController();
    const result = streamText({ ...base, prompt: 'long', abortSignal: abort.signal });
    for await (const text of result.textStream) {
      assert.ok(text.length > 0);
      abort.abort();
      break;
    }
  });
}

for (const [name, provider] of Object.entries({ openai, compatible })) {
  const model = name === 'openai' ? provider.completion('smollm2') : provider.completionModel('smollm2');
  const embedding = provider.embeddingModel('smollm2');

  test(`${name}: a completion`, async () => {
    assert.ok((await generateText({ model, prompt: 'hi', ...once })).text.includes('plain answer'));
  });

  test(`${name}: a completion, streamed`, async () => {
    const seen = await read(streamText({ model, prompt: 'hi', ...once }));
    assert.ok(seen.text.includes('plain answer'));
    assert.ok(seen.usage.outputTokens > 0);
  });

  test(`${name}: embeddings`, async () => {
    const one = await embed({ model: embedding, value: 'x', ...once });
    assert.ok(one.embedding.length > 0 && one.usage.tokens > 0);
    const many = await embedMany({ model: embedding, values: ['x', 'y'], ...once });
    assert.equal(many.embeddings.length, 2);
  });
}

test('responses: every option that only hints', async () => {
  const options = {
    reasoningEffort: 'low',
    reasoningSummary: 'auto',
    textVerbosity: 'low',
    serviceTier: 'auto',
    store: false,
    include: ['reasoning.encrypted_content'],
    metadata: { a: 'b' },
    user: 'u',
    parallelToolCalls: true,
    promptCacheKey: 'k',
    safetyIdentifier: 's',
    truncation: 'auto',
    instructions: 'Be nice.',
  };
  const providerOptions = { openai: options };
  const result = await generateText({ model: models.responses, prompt: 'hi', providerOptions, ...once });
  assert.equal(result.text, 'plain answer');
});

test('responses: a conversation that the server keeps', async () => {
  const model = models.responses;
  const first = await generateText({ model, prompt: 'hi', ...once });
  const providerOptions = { openai: { previousResponseId: first.response.id } };
  const second = await generateText({ model, prompt: 'again', providerOptions, ...once });
  assert.ok(second.usage.inputTokens > first.usage.inputTokens);
});

for (const store of [true, false]) {
  test(`responses: a tool's round trip with store ${store}`, async () => {
    const loop = { tools: { Bash }, stopWhen: isStepCount(3) };
    const providerOptions = { openai: { store, include: ['reasoning.encrypted_content'] } };
    const options = { ...loop, providerOptions, ...once };
    const result = await generateText({ model: models.responses, prompt: 'go', ...options });
    assert.equal(result.text, 'The tool said hello-42.');
  });
}

test('responses: log-probabilities', async () => {
  const providerOptions = { openai: { logprobs: 2 } };
  const result = await generateText({ model: models.responses, prompt: 'hi', providerOptions, ...once });
  assert.ok(result.providerMetadata.openai.logprobs[0].length > 0);
});

test('chat: every option that only hints', async () => {
  const options = {
    reasoningEffort: 'low',
    textVerbosity: 'low',
    serviceTier: 'auto',
    store: true,
    metadata: { a: 'b' },
    user: 'u',
    parallelToolCalls: true,
    promptCacheKey: 'k',
    safetyIdentifier: 's',
    prediction: { type: 'content', content: 'x' },
    logprobs: 2,
  };
  const providerOptions = { openai: options };
  const result = await generateText({ model: models.chat, prompt: 'hi', providerOptions, ...once });
  assert.equal(result.text, 'plain answer');
});

test('compatible: options of this server', async () => {
  const providerOptions = { caudal: { user: 'u', reasoningEffort: 'low', textVerbosity: 'low', min_p: 0.1 } };
  const result = await generateText({ model: models.compatible, prompt: 'hi', providerOptions, ...once });
  assert.equal(result.text, 'plain answer');
});

test('anthropic: options', async () => {
  const options = {
    thinking: { type: 'enabled', budgetTokens: 1024 },
    effort: 'low',
    sendReasoning: true,
    disableParallelToolUse: true,
    cacheControl: { type: 'ephemeral' },
    contextManagement: { edits: [{ type: 'clear_tool_uses_20250919' }] },
    metadata: { userId: 'u' },
  };
  const providerOptions = { anthropic: options };
  const result = await generateText({ model: models.anthropic, prompt: 'hi', providerOptions, ...once });
  assert.equal(result.text, 'plain answer');
});

test('anthropic: a tool loop that thinks', async () => {
  const providerOptions = { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } };
  const options = { tools: { Bash }, stopWhen: isStepCount(3), providerOptions, ...once };
  const result = await generateText({ model: models.anthropic, prompt: 'go', ...options });
  assert.equal(result.text, 'The tool said hello-42.');
  assert.equal(result.steps[0].reasoningText, thinks ? 'let me see' : undefined);
});

test('anthropic: a message to be cached', async () => {
  const cached = { anthropic: { cacheControl: { type: 'ephemeral', ttl: '1h' } } };
  const content = [{ type: 'text', text: 'x', providerOptions: cached }];
  const messages = [{ role: 'user', content }];
  const result = await generateText({ model: models.anthropic, messages, ...once });
  assert.equal(result.text, 'plain answer');
});
