/* Which operators the reference kernels hold, as the runtime's own reference resolver does.
 *
 * Codes are TFLite's BuiltinOperator. Operators with a plain kernel of their own come with the name
 * of its registration; those that have but one kernel serve both sets. Others are refused.
 */
#ifndef EDGEFUSE_OPERATORS_H
#define EDGEFUSE_OPERATORS_H

#include <stddef.h>

typedef struct {
    int code;
    const char *name;
} ReferenceKernel;

static const ReferenceKernel REFERENCE_KERNELS[] = {
    {0, "Register_ADD_REF"},
    {1, "Register_AVERAGE_POOL_REF"},
    {2, "Register_CONCATENATION_REF"},
    {3, "Register_CONVOLUTION_REF"},
    {4, "Register_DEPTHWISE_CONVOLUTION_REF"},
    {5, "Register_DEPTH_TO_SPACE_REF"},
    {6, "Register_DEQUANTIZE_REF"},
    {8, "Register_FLOOR_REF"},
    {9, "Register_FULLY_CONNECTED_REF"},
    {11, "Register_L2NORM_REF"},
    {12, "Register_L2_POOL_REF"},
    {13, "Register_LOCAL_RESPONSE_NORM_REF"},
    {14, "Register_LOGISTIC_REF"},
    {17, "Register_MAX_POOL_REF"},
    {18, "Register_MUL_REF"},
    {23, "Register_RESIZE_BILINEAR_REF"},
    {25, "Register_SOFTMAX_REF"},
    {26, "Register_SPACE_TO_DEPTH_REF"},
    {28, "Register_TANH_REF"},
    {34, "Register_PAD_REF"},
    {37, "Register_BATCH_TO_SPACE_ND_REF"},
    {38, "Register_SPACE_TO_BATCH_ND_REF"},
    {39, "Register_TRANSPOSE_REF"},
    {40, "Register_MEAN_REF"},
    {41, "Register_SUB_REF"},
    {42, "Register_DIV_REF"},
    {45, "Register_STRIDED_SLICE_REF"},
    {47, "Register_EXP_REF"},
    {50, "Register_LOG_SOFTMAX_REF"},
    {54, "Register_PRELU_REF"},
    {55, "Register_MAXIMUM_REF"},
    {57, "Register_MINIMUM_REF"},
    {60, "Register_PADV2_REF"},
    {65, "Register_SLICE_REF"},
    {67, "Register_TRANSPOSECONV_REF"},
    {74, "Register_SUM_REF"},
    {80, "Register_FAKE_QUANT_REF"},
    {81, "Register_REDUCE_PROD_REF"},
    {82, "Register_REDUCE_MAX_REF"},
    {89, "Register_REDUCE_MIN_REF"},
    {91, "Register_REDUCE_ANY_REF"},
    {97, "Register_RESIZE_NEAREST_NEIGHBOR_REF"},
    {98, "Register_LEAKY_RELU_REF"},
    {114, "Register_QUANTIZE_REF"},
    {117, "Register_HARD_SWISH_REF"},
    {126, "Register_BATCH_MATMUL_REF"},
    {132, "Register_CONV_3D_REF"},
    {140, "Register_REDUCE_ALL_REF"},
    {141, "Register_CONV_3D_TRANSPOSE_REF"},
    {0, NULL},
};

/* One kernel for both sets. */
static const int SHARED_KERNELS[] = {
    7, 16, 19, 20, 21, 22, 24, 27, 32, 35, 36, 43, 44, 46, 48, 49, 52, 53, 56, 58, 59, 61, 62,
    63, 64, 66, 68, 69, 70, 71, 72, 73, 75, 76, 77, 78, 79, 83, 84, 85, 86, 87, 88, 90, 92, 93,
    94, 95, 96, 99, 100, 101, 102, 103, 105, 106, 107, 108, 109, 110, 112, 113, 115, 118, 119,
    120, 121, 122, 123, 124, 125, 130, 145, 147, 150,
};

static int in_reference_set(int code) {
    for (const ReferenceKernel *k = REFERENCE_KERNELS; k->name; k++)
        if (k->code == code) return 1;
    for (size_t i = 0; i < sizeof SHARED_KERNELS / sizeof *SHARED_KERNELS; i++)
        if (SHARED_KERNELS[i] == code) return 1;
    return 0;
}

#endif
