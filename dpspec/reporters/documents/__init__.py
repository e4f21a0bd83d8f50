"""The documents of a result: what each report says, in order, as blocks that any renderer can lay out."""
