import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;

/** Word count, windows, and both kinds of joins, exactly once; runs until it is killed. */
public class StreamsJob {
    public static void main(String[] arguments) {
        String prefix = arguments[1];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", prefix);
        settings.put("state.dir", Path.of(arguments[2]).toString());
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("replication.factor", "3");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("commit.interval.ms", "200");
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("consumer.session.timeout.ms", "6000");
        settings.put("consumer.heartbeat.interval.ms", "1000");

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(prefix + "-lines");
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .mapValues(count -> count.toString())
            .to(prefix + "-counts");
        lines.groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofDays(1)))
            .count()
            .toStream()
            .map((window, count) -> KeyValue.pair(window.key() + "@" + window.window().start(), count.toString()))
            .to(prefix + "-windows");

        KTable<String, String> customers = builder.table(prefix + "-customers");
        KStream<String, String> orders = builder.stream(prefix + "-orders");
        orders.join(customers, (order, name) -> order + " " + name).to(prefix + "-named");
        KStream<String, String> payments = builder.stream(prefix + "-payments");
        orders.selectKey((customer, order) -> order)
            .join(payments, (order, payment) -> order + " " + payment,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofHours(1), Duration.ofDays(1)),
                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()))
            .to(prefix + "-paid");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.start();
    }
}
