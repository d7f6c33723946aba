"""Quix Streams on workload W: both topics into the sink, in several processes of one group."""

import argparse
import multiprocessing
import signal
import sys
import tomllib

from quixstreams import Application

from sink import Ledger


def consume(args, settings):
    app = Application(
        broker_address=args.brokers,
        consumer_group=args.group,
        auto_offset_reset="earliest",
        commit_interval=settings["commit_interval"],
        commit_every=settings["commit_every"],
        consumer_extra_config=settings["consumer"],
        consumer_poll_timeout=settings["consumer_poll_timeout"],
        state_dir=args.state,
        auto_create_topics=False,
        loglevel="WARNING",
    )
    sink = Ledger(args.database, [int(n) for n in args.topics.split(",")])
    for name in ("clicks", "postbacks"):
        topic = app.topic(name, key_deserializer="bytes", value_deserializer="bytes")
        app.dataframe(topic).sink(sink)
    app.run()


def main():
    parser = argparse.ArgumentParser()
    for name in ("brokers", "database", "group", "topics", "settings", "state"):
        parser.add_argument("--" + name, required=True)
    # What is tried is tried by naming it: --set processes=1,consumer.fetch.min.bytes=1
    parser.add_argument("--set", default="")
    args = parser.parse_args()
    with open(args.settings, "rb") as file:
        settings = tomllib.load(file)
    for pair in filter(None, args.set.split(",")):
        name, _, value = pair.partition("=")
        head, _, rest = name.partition(".")
        value = float(value) if "." in value else int(value)
        if rest:
            settings[head][rest] = value
        else:
            settings[name] = value
    if settings["processes"] == 1:
        return consume(args, settings)
    forked = multiprocessing.get_context("fork")
    workers = [forked.Process(target=consume, args=(args, settings)) for _ in range(settings["processes"])]
    for worker in workers:
        worker.start()

    def end(*_):
        for worker in workers:
            worker.terminate()

    signal.signal(signal.SIGTERM, end)
    for worker in workers:
        worker.join()
        if worker.exitcode not in (0, -signal.SIGTERM):
            end()
            sys.exit(f"a process of the peer ended: {worker.exitcode}")


if __name__ == "__main__":
    main()
