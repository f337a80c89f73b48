"""M3 on NATS: streams in processes that do not publish, while NATS is there and while it is not."""
from lib.chat import CHAT, FAST, Session
from lib.config import merge

ON_NATS = merge(FAST, {"bus": {"migrate": "always"}})


def test_m3_streams_of_every_process_say_the_same(engines, serve, database, token):
    servers = [serve(database, ON_NATS, args=CHAT) for _ in range(2)]
    with Session(servers[0], token("demo")) as chat, Session(servers[1], token("demo"), chat.project, chat.session) as other:
        chat.say("first")
        with chat.stream() as here, other.stream(Accept="text/event-stream") as there:
            for number in range(10):
                (chat, other)[number % 2].say(str(number))
            assert here.until(22) == there.until(22)
            engines.nats.kill()
            for number in range(4):
                (chat, other)[number % 2].say(f"without {number}")
            engines.nats.start()
            last = chat.say("with")["sequence"] + 1
            here.until(last)
            there.until(last)
            assert here.seen == there.seen == list(range(1, last + 1))
