"""Whose a file is: what another user could have written is not unpickled, since that runs its code."""

import os
import stat


def trouble(path):
    """Why another user could have written to what lies at `path`; empty where none could.

    A link counts as well: whoever made it chose what is read.
    """
    link = os.lstat(path)
    about = os.stat(path) if stat.S_ISLNK(link.st_mode) else link
    own = os.geteuid()
    if about.st_uid != own or (about is not link and link.st_uid not in (own, 0)):
        return "belongs to another user"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by another user"
    return ""


def first_trouble(paths):
    """The first of `paths` in trouble, in words; empty where there is none. What is not there is passed over."""
    for path in paths:
        try:
            why = trouble(path)
        except FileNotFoundError:
            continue
        if why:
            return "%s %s" % (path, why)
    return ""


def make_folder(path):
    """Make a folder, and the one above it, for their owner alone whatever the umask."""
    for folder in (os.path.dirname(path), path):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
