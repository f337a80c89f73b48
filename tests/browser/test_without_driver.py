"""Issue 15, point 2, where playwright-core cannot be fetched: Chromium itself loads the console and prints the page that its scripts made."""
import os
import subprocess


def test_chromium_loads_the_console_and_its_scripts_ask_for_a_token(stage, tmp_path):
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run(["chromium", "--headless=new", *sandbox, f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000",
                           "--enable-logging=stderr", "--dump-dom", f"http://127.0.0.1:{stage.server.port}/console"],
                          capture_output=True, text=True, timeout=120, check=True)
    assert 'type="password"' in done.stdout and "Sign in</button>" in done.stdout  # made by app.js and all that it imports
    assert "How do I get a token?" in done.stdout
    assert "Refused to" not in done.stderr and "Uncaught" not in done.stderr, done.stderr
