"""Inference with the model that a swarm trains, by its coordinator: text, and the loss on dev.

Hidden states travel from stage to stage, one token at a time; each stage keeps the keys and values, or the recurrent
state, of its blocks. An update of the weights, or the loss of a peer, makes these caches useless: then the stages read
the whole text again. So each token follows from the weights of one version, which its reply names. Training goes on.
"""

from __future__ import annotations

import asyncio
import codecs
import secrets
from collections.abc import AsyncIterator, Callable, Sequence

import torch
from torch import Tensor

from trainer.data.tokenizer import Tokenizer
from trainer.inference.sampling import Sampler
from trainer.swarm import messages
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallRefusedError, RpcFrame
from trainer.swarm.next_stage_client import describe_non_finite, get_single_tensor
from trainer.swarm.stage_client import StageClient
from trainer.swarm.transport import get_loop_time

MAX_TEXTS = 4  # sampled at the same time
TEXT_SECONDS = 600.0  # Longest time that a text may take. Its place is free afterwards, even if its reader has stalled.
RETRY_SECONDS = 0.05  # Pause after a refusal: an update takes place, or a peer is lost


class SwarmText:
    """A text and its position in the caches of the stages. A prediction sees at most a training row of it."""

    def __init__(self, client: StageClient, config: SwarmConfig, get_step: Callable[[], int], timeout: float) -> None:
        """`client`: of the first stage; `get_step`: the version of the weights; `timeout`: seconds for each stage."""
        self.client, self.config, self.get_step, self.timeout = client, config, get_step, timeout
        self.tokens: list[int] = []
        self.step = 0
        self.reset_caches()

    def reset_caches(self) -> None:
        """Forget the caches."""
        self.name, self.start, self.path = secrets.token_hex(8), 0, tuple[str, ...]()

    def add_tokens(self, tokens: Sequence[int]) -> None:
        """Add tokens. A text that outgrows a row continues from its last half row, as in `TextGenerator`."""
        self.tokens.extend(tokens)
        if len(self.tokens) > self.config.sequence_length:
            self.tokens = self.tokens[-max(1, self.config.sequence_length // 2) :]
            self.reset_caches()

    async def predict(self) -> Tensor:
        """Return the next token's logits `[V]`. Raise `CallRefusedError` if the stages refuse for too long."""
        deadline = get_loop_time() + self.timeout * (self.config.stages + 1)
        while True:
            try:
                return await self.read_new_tokens()
            except CallRefusedError:
                self.reset_caches()
                if get_loop_time() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def read_new_tokens(self) -> Tensor:
        if self.get_step() != self.step:
            self.reset_caches()
            self.step = self.get_step()
        x = torch.tensor([self.tokens[self.start :]])
        position = messages.CachePosition(name=self.name, start=self.start, path=self.path)
        request = messages.RunRequest(
            step=self.step, micro_batch=0, mode="logits", timeout=self.timeout, cache=position
        )
        pinned = self.path[0] if self.path else None
        frame, stages = messages.to_frame(request, x), self.config.stages
        reply, result = await self.client.call_stage(frame, stages, self.timeout, 0.0, self.check_reply, pinned)
        self.start, self.path = len(self.tokens), result.path
        return reply.tensors[0][0]

    def check_reply(self, _: str, reply: RpcFrame) -> str:
        shape = (1, int(self.config.model["vocabulary_size"]))
        return describe_non_finite(get_single_tensor(reply, shape, torch.float32))


class SamplingService:
    """The coordinator's method `sample`."""

    def __init__(
        self,
        build_text: Callable[[], SwarmText],
        tokenizer: Tokenizer,
        list_empty_stages: Callable[[], Sequence[int]],
        admit: Callable[[messages.SampleRequest], bool],
        seconds: float = TEXT_SECONDS,
    ) -> None:
        """`admit`: whether this request shows a valid credential; `seconds`: limit of a text."""
        self.build_text, self.tokenizer, self.list_empty_stages = build_text, tokenizer, list_empty_stages
        self.admit, self.seconds = admit, seconds
        self.deadlines: dict[str, float] = {}  # Of the texts that are being sampled, by the label of their request

    async def on_sample(self, caller: str, frame: RpcFrame) -> AsyncIterator[RpcFrame]:
        request = messages.parse_message(messages.SampleRequest, frame)
        if not self.admit(request):
            raise CallRefusedError("not_admitted", "its credential is invalid")
        if empty := self.list_empty_stages():
            names = ", ".join(str(stage + 1) for stage in empty)
            raise CallRefusedError("no_peers", f"no worker is at stage {names}; try again when one has joined")
        label = request.label or caller
        deadline = self.reserve_place(label)
        try:
            async for piece in self.sample(request, deadline):
                yield messages.to_frame(piece)
        finally:
            if self.deadlines.get(label) == deadline:  # after the deadline the place may be another text's
                del self.deadlines[label]

    def reserve_place(self, label: str) -> float:
        """Return the deadline of a new text; raise `CallRefusedError` if this label or too many others have one."""
        now = get_loop_time()
        self.deadlines = {other: deadline for other, deadline in self.deadlines.items() if deadline > now}
        if label in self.deadlines:
            raise CallRefusedError("busy", "the previous text of this label has not ended; wait for it")
        if len(self.deadlines) >= MAX_TEXTS:
            raise CallRefusedError("busy", f"{MAX_TEXTS} texts are being sampled; try again in a moment")
        self.deadlines[label] = now + self.seconds
        return self.deadlines[label]

    async def predict_before(self, text: SwarmText, deadline: float) -> Tensor:
        try:
            async with asyncio.timeout_at(deadline):
                return await text.predict()
        except TimeoutError:
            limit = f"a text may take {self.seconds:.0f} s"
            raise CallRefusedError("deadline", f"{limit}, and this one takes longer; ask for fewer tokens") from None

    async def sample(self, request: messages.SampleRequest, deadline: float) -> AsyncIterator[messages.SampledText]:
        """Yield the continuation of the prompt, a piece for each token that completes a character.

        Raise `CallRefusedError` at the deadline.
        """
        sampler = Sampler(request.temperature, request.top_k, request.top_p, request.seed)
        text, decoder = self.build_text(), codecs.getincrementaldecoder("utf-8")(errors="replace")
        text.add_tokens([self.tokenizer.end_of_text, *self.tokenizer.encode(request.prompt)])
        count, is_ended = 0, False
        while count < request.tokens:
            token = sampler.sample(await self.predict_before(text, deadline))
            is_ended = token == self.tokenizer.end_of_text
            if is_ended:
                break
            text.add_tokens([token])
            count += 1
            if piece := decoder.decode(self.tokenizer.get_token_bytes(token)):
                yield messages.SampledText(text=piece, tokens=count, step=text.step)
        ended = "end of text" if is_ended else "length"
        yield messages.SampledText(text=decoder.decode(b"", final=True), tokens=count, step=text.step, ended=ended)


async def evaluate_dev(
    client: StageClient, batches: Batches, step: int, timeout: float, rows: int = 32
) -> tuple[float, int]:
    """Return the loss on the first `rows` rows of dev, in nats per target, and the number of targets."""
    nats, targets = 0.0, 0
    for number, (x, y) in enumerate(batches.iter_dev(rows)):
        request = messages.RunRequest(step=step, micro_batch=number, mode="nats", timeout=timeout)
        reply, _ = await client.call_stage(messages.to_frame(request, x, y), batches.config.stages, timeout, x.numel())
        nats, targets = nats + float(reply.tensors[0].double().sum()), targets + int((y >= 0).sum())
    return nats / max(targets, 1), targets
