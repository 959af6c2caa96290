"""Runs the lines of a cell that began with ``!``."""

import sys

NAME = "__clusterkernel_shell__"


class Lines(list):
    """Lines of output, with what IPython gives beside them."""

    @property
    def l(self):  # noqa: E743 - IPython's name
        """The lines."""
        return self

    @property
    def n(self):
        """The output as one text."""
        return "\n".join(self)

    @property
    def s(self):
        """The lines, joined by spaces."""
        return " ".join(self)

    list = l
    nlstr = n
    spstr = s


def run(command, expand=None, capture=False):
    """Run a command with ``/bin/sh``.

    Parameters
    ----------
    command : str
        As the cell has it.
    expand : callable, optional
        Gives the command with ``{expression}`` and ``$name`` replaced; where
        it raises, `command` stands, and the shell reads it.
    capture : bool
        Give what it prints as a list of lines; else it goes to our own streams.

    Returns
    -------
    Lines or None
    """
    if expand is not None:
        try:
            command = expand()
        except Exception:  # as in IPython: the line may mean the shell's own $ and {}
            pass
    import subprocess  # not before: most cells have no such line

    sys.stdout.flush()
    sys.stderr.flush()
    if not capture:
        code = subprocess.call(command, shell=True)
        if code != 0:
            sys.stderr.write("The command ended with exit code %d: %s\n" % (code, command))
        return None
    process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate()
    return Lines(output.decode("utf-8", "replace").splitlines())
