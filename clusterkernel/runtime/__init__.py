"""What runs inside a job.

Standard library and cloudpickle only, and a syntax that Python 3.6 reads, since
a node's Python may be old. The files are copied into the job root as the
package ``ckruntime``, so imports in here are relative.
"""
