"""What a worker process of a job finds in its main module."""

import os

from . import payloadfile
from .context import read_json
from .pickling import Loader, Unpickler


def define(namespace, folder):
    """Put what workers need from the notebook into `namespace`: functions, classes, and what these use.

    Parameters
    ----------
    namespace : dict
        The worker's ``__main__``.
    folder : str
        The payload's.
    """
    about = read_json(os.path.join(folder, "payload.json"))
    payloadfile.learn_sources(folder)
    loader = Loader(namespace)
    if about["kind"] == "cell":
        with open(os.path.join(folder, "names.pkl"), "rb") as file:
            unpickler = Unpickler(file, loader)
            for name in about["captured"][: about["definitions"]]:
                namespace[name] = unpickler.load()
    else:
        with open(os.path.join(folder, "call.pkl"), "rb") as file:
            unpickler = Unpickler(file, loader)
            payloadfile.publish(namespace, unpickler.load())
            if about.get("array"):
                unpickler.load()
    loader.settle()
