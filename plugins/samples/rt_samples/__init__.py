"""Real digits and photographs, and encoders of them: data and networks for trying the toolkit without a download."""
