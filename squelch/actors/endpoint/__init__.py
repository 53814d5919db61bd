"""The HTTP endpoint at which agents play against the policy in the words of OpenAI's and Anthropic's APIs."""
