"""C5: authentication is off only where nobody but this machine can ask."""
import subprocess

from lib.config import base_config, merge
from lib.freshet import Freshet, binary, run
from lib.refdata import path, pod
from lib.wait import eventually, free_port


class ByFile(Freshet):
    """A server that listens where its file says, not where --listen does."""

    def spawn(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([binary(), "serve", "--config", str(self.config_path)],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env,
                                            start_new_session=True)


def test_c5_a_reload_does_not_switch_authentication_off_behind_an_open_listener(database, jwks_path, tmp_path):
    port = free_port()
    changes = merge(pod("A"), {"http": {"listen": [f"0.0.0.0:{port}"]}})
    config = merge(base_config(database, jwks_path), changes)
    server = ByFile(config, tmp_path, {"FRESHET_TEST_PG_PASSWORD": database.password})
    server.port = port
    try:
        server.start()
        server.write_config(merge(config, {"http": {"listen": [f"127.0.0.1:{port}"]}, "auth": {"enabled": False}}))
        server.sighup()
        eventually(lambda: server.logs(event="config_reloaded"))
        assert server.logs(event="config_needs_restart", field="auth.enabled")
        assert server.client().get(path("A", "/version")).status == 401
        server.stop()
    finally:
        server.kill()


def test_c5_a_name_that_begins_like_a_loopback_address_is_none(database, jwks_path, tmp_path):
    for address in ["127.example.com:0", "127.0.0.1.example.com:0"]:
        config = merge(base_config(database, jwks_path), {"auth": {"enabled": False}, "http": {"listen": [address]}})
        server = ByFile(config, tmp_path)
        done = run("config", "--config", server.config_path, env={"FRESHET_TEST_PG_PASSWORD": database.password})
        assert done.returncode == 1 and "loopback" in done.stderr, (address, done.stderr)
