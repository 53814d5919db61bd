"""Parts of Harbor's interface for tests: an environment that is a folder of this computer, and an agent that asks once.

`Here` runs commands on this computer, with `/logs` and `/tests` below its own folder; a task that needs more of a
container does not run in it.
"""

import asyncio
import os
import re
import shutil
import tempfile
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from openai import AsyncOpenAI


class Here(BaseEnvironment):
    @staticmethod
    def type():
        return "here"

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        self._root = tempfile.mkdtemp(prefix="here-")
        for name in ("logs/agent", "logs/verifier", "logs/artifacts", "work"):
            (Path(self._root) / name).mkdir(parents=True)

    async def stop(self, delete):
        await self.exec("tmux kill-server")
        shutil.rmtree(self._root)

    def _here(self, text):
        return re.sub(r"(?<![\w./-])/(logs|tests)\b", rf"{self._root}/\1", str(text))

    async def upload_file(self, source_path, target_path):
        target = Path(self._here(target_path))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, target)

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self._here(target_dir), dirs_exist_ok=True)
        for path in Path(self._here(target_dir)).rglob("*.sh"):
            path.write_text(self._here(path.read_text()))

    async def download_file(self, source_path, target_path):
        shutil.copy(self._here(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self._here(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", self._here(command)),
            cwd=Path(self._root) / "work",
            env={**os.environ, "TMUX_TMPDIR": self._root, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, log = await asyncio.wait_for(process.communicate(), timeout_sec)
        return ExecResult(stdout=out.decode(), stderr=log.decode(), return_code=process.returncode)


class Asks(BaseAgent):
    """Writes the model's answer into the file `answer`; it fails where the answer is `fault`."""

    @staticmethod
    def name():
        return "asks"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        client = AsyncOpenAI(base_url=self._extra_env["OPENAI_BASE_URL"], api_key=self._extra_env["OPENAI_API_KEY"])
        messages = [{"role": "user", "content": instruction}]
        reply = await client.chat.completions.create(model=self.model_name.split("/")[-1], messages=messages)
        said = reply.choices[0].message.content
        await environment.exec("cat > answer <<'END'\n" + said + "\nEND")
