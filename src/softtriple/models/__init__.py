"""The encoder, and backbones with the preprocessing that their weights expect."""

from softtriple.models.backbones import BACKBONES as BACKBONES
from softtriple.models.backbones import Backbone as Backbone
from softtriple.models.backbones import build_backbone as build_backbone
from softtriple.models.backbones import check_backbone as check_backbone
from softtriple.models.backbones.stages import StagedNetwork as StagedNetwork
from softtriple.models.description import EncoderConfig as EncoderConfig
from softtriple.models.encoder import Encoder as Encoder
from softtriple.models.preprocess import Preprocess as Preprocess
from softtriple.models.trainable import check_trainable as check_trainable
