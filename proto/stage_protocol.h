// Facts about proto/stage.proto that both of its sides need and a .proto file cannot say.
#pragma once

#include <cstdint>

namespace warpline {

// Of Assign, Hello and EdgeHello; raised with every change of meaning in proto/stage.proto.
constexpr uint32_t kStageProtocolVersion = 2;

// Steps that an edge may carry without an acknowledgement.
constexpr uint32_t kEdgeSlots = 1     // computing: its rows are being made by the sender
                                + 1   // arriving: sent, the receiver has not begun
                                + 1;  // leaving: the receiver computes with it

// In StepEntryMessage::token_ids: the token that the stage draws after the row before. The only
// stage of a pipeline knows it before the coordinator does.
constexpr int32_t kTokenDrawnBefore = -1;

// Bounds of what an Assign may ask for.
constexpr uint32_t kMaxSlots = 1024;
constexpr uint32_t kMaxEdgeSlots = 16;

// LogitRows and EvaluateResponse: the most bytes of values in a message, unless one row is more.
constexpr int64_t kLogitPieceBytes = 2 << 20;

}  // namespace warpline
