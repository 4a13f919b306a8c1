"""Better weights and biases, found in torch on the float .tflite: the only door to torch here."""
