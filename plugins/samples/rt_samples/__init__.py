"""Real digits and four small encoders of them: data and networks for trying the toolkit without a download."""
