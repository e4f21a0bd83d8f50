"""The paper's published formulas, including refuted ones. They decide no verdict."""
