"""A `Taskset` of verifiers 0.4, as its users write one: sums, and the reward for the right number."""

import random

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class Sum(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.1)
    async def brief(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 8)


class SumsConfig(vf.TasksetConfig):
    num_tasks: int = 64


class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self) -> list[Sum]:
        numbers = random.Random(0)
        pairs = [(numbers.randrange(100), numbers.randrange(100)) for _ in range(self.config.num_tasks)]
        return [Sum(SumData(prompt=f"What is {a} + {b}?", answer=a + b), self.config.task) for a, b in pairs]
