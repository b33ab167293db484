"""The paper's evaluation: studies, figures, fits, and the scorecard."""
