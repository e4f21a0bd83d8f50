"""The documents of a result: the content of each report, in order, as blocks that any renderer can lay out."""
