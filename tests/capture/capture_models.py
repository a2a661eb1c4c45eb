"""Small models for the tests; imported only where PyTorch is installed."""

import torch
from torch import nn
from torch.nn import functional


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 32)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def perceptron(batch_size=16):
    return Perceptron(), (torch.randn(batch_size, 64),)


class Attention(nn.Module):
    """Attention with 4 heads of 16 on 64 positions."""

    def __init__(self, dropout=0.1, causal=False, key_heads=4):
        super().__init__()
        self.query = nn.Linear(64, 64)
        self.key = nn.Linear(64, 16 * key_heads)
        self.value = nn.Linear(64, 16 * key_heads)
        self.dropout, self.causal, self.key_heads = dropout, causal, key_heads

    def forward(self, x):
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, 4, 16).transpose(1, 2)
        key, value = (
            layer(x).view(batch, length, self.key_heads, 16).transpose(1, 2)
            for layer in (self.key, self.value)
        )
        out = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout, is_causal=self.causal, enable_gqa=self.key_heads != 4
        )
        return out.transpose(1, 2).reshape(batch, length, 64)


def attention(**options):
    return lambda: (Attention(**options), (torch.randn(8, 64, 64),))


class EightBits(nn.Module):
    """A product of 32 x 128 and 128 x 64 in 8 bits, floating-point or integer."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Buffer(torch.zeros(64, 128, dtype=dtype))

    def forward(self, x, scale):
        if self.weight.dtype is torch.int8:
            return torch._int_mm(x, self.weight.t())
        return torch._scaled_mm(x, self.weight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def eight_bits(dtype):
    return lambda: (EightBits(dtype), (torch.zeros(32, 128, dtype=dtype), torch.ones(1)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.act = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16 * 8 * 8, 10)

    def forward(self, images, labels):
        features = self.pool(self.act(self.norm(self.conv(images))))
        logits = self.head(self.drop(features.flatten(1)))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def conv_net(batch_size=32, image_size=16):
    labels = torch.zeros(batch_size, dtype=torch.int64)
    return ConvNet(), {"images": torch.randn(batch_size, 3, image_size, image_size), "labels": labels}


class Language(nn.Module):
    """Two encoder layers with the input embedding tied to the output."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(64, 1000, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        logits = self.output(self.encoder(self.embedding(tokens)))
        return functional.cross_entropy(logits.view(-1, 1000), tokens.view(-1))


def language(batch_size=16, seq_len=64):
    return Language(), {"tokens": torch.zeros(batch_size, seq_len, dtype=torch.int64)}


class Unusual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return torch.fft.rfft(self.linear(x)).abs()


def unusual():
    return Unusual(), torch.randn(4, 32)


class Undecided(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        out = self.linear(x)
        if out.sum() > 0:  # the line that a refusal names
            out = out * 2
        return out


def undecided():
    return Undecided(), torch.randn(4, 8)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(32, 64)
        self.head = nn.Linear(64, 8)
        self.body.requires_grad_(False)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        return self.head(self.body(x)) + self.shift


def frozen():
    return Frozen(), torch.randn(16, 32)


def stepped():
    """Three layers with rates of dropout that grow from a table, as stochastic depth is often written."""
    layers = []
    for rates in torch.linspace(0.1, 0.3, 3).split(1):
        layers += [nn.Linear(8, 8), nn.Dropout(rates.tolist()[0])]
    return nn.Sequential(*layers), torch.randn(4, 8)


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.scale * torch.binomial(x, x)


def drawn(batch_size):
    return Drawn(), torch.zeros(batch_size)


def truncated():
    linear = nn.Linear(8, 8)
    nn.init.trunc_normal_(linear.weight)
    return linear, torch.randn(4, 8)


def no_gradient():
    return nn.ReLU(), torch.randn(4, 8)


def not_a_pair():
    return nn.Linear(2, 2)


def broken():
    raise RuntimeError("no such file")


NOT_CALLABLE = 3


class SelfAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(64, 4)

    def forward(self, hidden):
        return self.attention(hidden, hidden, hidden, need_weights=False)[0]


def self_attention():
    """Positions come before samples, as nn.MultiheadAttention has them."""
    return SelfAttention(), torch.randn(16, 2, 64)
