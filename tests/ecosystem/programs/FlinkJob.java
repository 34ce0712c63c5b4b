import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Numbers the records of each key, exactly once, from one topic into another; fails once on the way. */
public class FlinkJob {
    static final AtomicBoolean FAILED = new AtomicBoolean();

    /** "key number" becomes "key number count"; the count is state that a checkpoint holds. */
    static class Number extends KeyedProcessFunction<String, String, String> {
        private final int failAt;
        private final long pauseEvery;
        private transient ValueState<Long> count;
        private transient long seen;

        Number(int failAt, long pauseEvery) {
            this.failAt = failAt;
            this.pauseEvery = pauseEvery;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Long.class));
        }

        @Override
        public void processElement(String line, Context context, Collector<String> out) throws Exception {
            long now = count.value() == null ? 1 : count.value() + 1;
            count.update(now);
            if (++seen % pauseEvery == 0) {
                Thread.sleep(10);
            }
            if (Integer.parseInt(line.split(" ")[1]) == failAt && FAILED.compareAndSet(false, true)) {
                System.out.println("failing on purpose");
                throw new IllegalStateException("on purpose");
            }
            out.collect(line + " " + now);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "1 s");
        settings.setString("execution.checkpointing.timeout", "60 s");
        settings.setString("execution.checkpointing.tolerable-failed-checkpoints", "100");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "50");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        settings.setString("taskmanager.memory.network.min", "16mb");
        settings.setString("taskmanager.memory.network.max", "16mb");
        settings.setString("taskmanager.memory.managed.size", "16mb");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);

        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap)
            .setTopics(arguments[1])
            .setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setProperty("isolation.level", "read_committed")
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink")
            .setProperty("transaction.timeout.ms", "120000")
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(arguments[2])
                .setKeySerializationSchema((String line) -> line.split(" ")[0].getBytes())
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "in")
            .keyBy(line -> line.split(" ")[0])
            .process(new Number(Integer.parseInt(arguments[3]), Long.parseLong(arguments[4])))
            .sinkTo(sink);
        environment.execute("ring");
        System.out.println("finished");
    }
}
