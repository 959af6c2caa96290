"""axolotl's cloud YAML: Modal and Baseten."""
