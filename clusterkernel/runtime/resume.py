"""A later attempt of an axolotl run goes on from the checkpoint that an earlier one left."""

import os
import re
import zlib

_CHECKPOINT = re.compile(r"checkpoint-([0-9]+)$")
# transformers writes it last: a checkpoint that has it is complete.
_COMPLETE = "trainer_state.json"
_KEYS = re.compile(r"(?m)^(?:auto_resume_from_checkpoints|resume_from_checkpoint)[ \t]*:.*\n?")


def checkpoints(folder):
    """The complete checkpoints in a folder: their names, and a number that tells one from another of its name.

    Of files on a volume neither times nor inodes need to be the same in another container.
    """
    found = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name, _COMPLETE)
        if _CHECKPOINT.match(name) and os.path.isfile(path):
            with open(path, "rb") as file:
                found[name] = zlib.crc32(file.read())
    return found


def newest(found, before):
    """The last checkpoint of those `found` that were not there `before` the job; empty where it left none."""
    ours = [name for name, mark in found.items() if before.get(name) != mark]
    return max(ours, key=lambda name: int(_CHECKPOINT.match(name).group(1))) if ours else ""


def go_on_from(config, checkpoint):
    """Let a configuration begin with a checkpoint, by keys at its end. False where it is not written in lines.

    Parameters
    ----------
    config : str
        The file.
    checkpoint : str
        The checkpoint's folder.
    """
    from . import lean

    with open(config, encoding="utf-8") as file:
        text = _KEYS.sub("", file.read())
    if text.lstrip().startswith("{") or re.search(r"(?m)^\.\.\.\s*$", text):
        return False
    line = "resume_from_checkpoint: %s\n" % lean.dumps(checkpoint).decode("utf-8")
    with open(config, "w", encoding="utf-8") as file:
        file.write(text.rstrip() + "\n" + line)
    return True
