"""Launch lines: srun, torchrun, accelerate, deepspeed, axolotl, container runtimes."""
