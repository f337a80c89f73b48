"""The Python client as driver.py tells it: each command in a thread of its own."""
import json
import sys
import threading
import time

import freshet

OUT = threading.Lock()
STATE = {"token_calls": 0}
COPIES, CHATS = {}, {}


class Listener:
    """Reads a chat in a thread."""

    def __init__(self, chat):
        self.chat, self.events, self.error = chat, [], None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            for event in self.chat:
                self.events.append(event)
        except freshet.FreshetError as error:
            self.error = described(error)


def described(error):
    names = ("code", "status", "event_id", "key", "oldest_sequence", "retry_after")
    return {"name": type(error).__name__, "message": str(error), **{name: getattr(error, name, None) for name in names}}


def token_function(path):
    def read():
        STATE["token_calls"] += 1
        with open(path, encoding="ascii") as file:
            return file.read()
    return read


def open_client(url, tenant, token=None, token_file=None, **options):
    STATE["client"] = freshet.Client(url, tenant, token_function(token_file) if token_file else token, **options)


def rss_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def torn(name, seconds):
    """How many snapshots of the copy were not of one version, and how many were looked at: every item says its label."""
    copy, until, seen, wrong = COPIES[name], time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        found = copy.snapshot()
        seen += 1
        wrong += len({item["label"] for item in found.items.values()}) > 1
        part = copy.many(["k0", "k49"])
        wrong += len({item["label"] for item in part.items.values()}) > 1
    return [wrong, seen]


def label_below(limit):
    def convert(value):
        if value["label"] >= limit:
            raise ValueError("too high")
        return value
    return convert


def follow(name, dictionary, idle=45.0, only=None, boxed=False, fails_at=None):
    convert = ((lambda value: tuple(value.items())) if boxed else (lambda value: value[only]) if only
               else label_below(fails_at) if fails_at else None)
    COPIES[name] = STATE["client"].follow(dictionary, idle_timeout=idle, convert=convert,
                                          on_change=STATE.setdefault(f"changes {name}", []).append)
    return COPIES[name].version


def end():
    for copy in COPIES.values():
        copy.close()
    for listener in CHATS.values():
        listener.chat.close()
        listener.thread.join()
    STATE["client"].close()
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("freshet")]
    assert not names, names


def client(method):
    """A method of the client; what it yields as a list."""
    def call(**args):
        result = getattr(STATE["client"], method)(**args)
        return list(result) if hasattr(result, "__next__") else result
    return call


def update(**args):
    return STATE["client"].update(**args)._asdict()


def numbered(dictionary, count):
    return STATE["client"].replace(dictionary, {f"n{i}": {"i": i, "name": f"item {i}"} for i in range(count)})._asdict()


def listen(name, project, session, **options):
    CHATS[name] = Listener(STATE["client"].chat(project, session, **options))


def state_of(name):
    copy = COPIES[name]
    return {"version": copy.version, "size": len(copy), "reconnects": copy.reconnects, "reloads": copy.reloads,
            "error": copy.error and described(copy.error)}


COMMANDS = {
    "open": open_client,
    "get": client("get"), "get_many": client("get_many"), "version": client("version"), "entity": client("entity"),
    "update": update, "update_state": client("update_state"), "replace": lambda **args: STATE["client"].replace(**args)._asdict(),
    "numbered": numbered,
    "create_item": client("create_item"), "read_item": client("read_item"), "grant": client("grant"), "revoke": client("revoke"),
    "dictionaries": client("dictionaries"), "entitlements": client("entitlements"), "notifications": client("notifications"), "messages": client("messages"),
    "events": client("events"), "post_message": client("post_message"),
    "request": lambda **args: STATE["client"].request(**args).json(),
    "follow": follow, "copy": state_of,
    "copy_all": lambda name: COPIES[name].snapshot()._asdict(),
    "copy_get": lambda name, key: COPIES[name].get(key),
    "copy_wait": lambda name, version, timeout=60: COPIES[name].wait_for(version, timeout),
    "copy_close": lambda name: COPIES[name].close(),
    "changes": lambda name: [[batch.version, sorted(batch.upserts), sorted(batch.deletes)] for batch in STATE[f"changes {name}"]],
    "torn": torn,
    "listen": listen,
    "heard": lambda name: {"events": CHATS[name].events, "error": CHATS[name].error, "position": CHATS[name].chat.position,
                           "reconnects": CHATS[name].chat.reconnects},
    "token_calls": lambda: STATE["token_calls"],
    "memory": rss_bytes,
    "end": end,
}


def perform(line):
    command = json.loads(line)
    answer = {"id": command["id"]}
    try:
        answer["ok"] = COMMANDS[command["do"]](**command["args"])
    except Exception as error:  # pylint: disable=broad-except
        answer["error"] = described(error)
    with OUT:
        print(json.dumps(answer), flush=True)


def main():
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=perform, args=(line,)))
        threads[-1].start()
    for thread in threads:
        thread.join()


main()
