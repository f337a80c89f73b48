"""A person at the keyboard of a shell: types a line, presses Tab, and reads what stands there then."""
import os
import pty
import re
import select
import subprocess
import time

SECONDS = 30
SETUP = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}


class Shell:
    """An interactive shell on a terminal, with the script for completion loaded."""

    def __init__(self, name, script, folder):
        self.terminal, its_own = pty.openpty()
        env = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "$ ", "HOME": str(folder), "COLUMNS": "400"}
        self.process = subprocess.Popen(SETUP[name], stdin=its_own, stdout=its_own, stderr=its_own, env=env,  # pylint: disable=consider-using-with
                                        cwd=folder, start_new_session=True)
        os.close(its_own)
        if name == "bash":
            self._run("bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; stty cols 400")
        else:
            self._run("unsetopt zle_bracketed_paste beep; bindkey -e; autoload -Uz compinit && compinit -u -D; stty cols 400")
        self._run(f"source {script}")

    def complete(self, line):
        """The line after Tab: it becomes the argument of an echo, which prints it."""
        printed = self._enter(f"{line}\t\x01echo 'LINE:'\x05")
        return re.search(r"^LINE: ?(.*?)\s*$", printed, re.M)[1]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)

    def _run(self, command):
        self._enter(command)

    def _enter(self, text):
        """What is printed for a line, up to a mark that only its execution can print."""
        mark = f"END{time.monotonic_ns()}"
        os.write(self.terminal, text.encode() + f"; echo {mark[:5]}''{mark[5:]}\n".encode())
        printed, deadline = b"", time.monotonic() + SECONDS
        while mark.encode() not in printed:
            ready, _, _ = select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"the shell does not answer: {printed!r}"
            printed += os.read(self.terminal, 65536)
        return printed.decode(errors="replace").replace("\r", "\n")
