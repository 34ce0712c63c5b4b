import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Twenty transactions of the Java producer, every other one aborted; then what a reader of committed records sees. */
public class Transactions {
    public static void main(String[] arguments) {
        String topic = arguments[1];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", "java-" + topic);
        settings.put("group.id", "java-" + topic);
        settings.put("isolation.level", "read_committed");
        for (String side : List.of("key", "value")) {
            settings.put(side + ".serializer", "org.apache.kafka.common.serialization.StringSerializer");
            settings.put(side + ".deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        }
        List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
             KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            consumer.assign(partitions);
            producer.initTransactions();
            for (int number = 0; number < 20; number++) {
                producer.beginTransaction();
                for (int place = 0; place < 2; place++) {
                    producer.send(new ProducerRecord<>(topic, place, "key", number + "-" + place));
                }
                producer.flush();
                producer.sendOffsetsToTransaction(
                    Map.of(partitions.get(0), new OffsetAndMetadata(number + 1)), consumer.groupMetadata());
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            System.out.println("committed " + consumer.committed(Set.copyOf(partitions)).get(partitions.get(0)).offset());
            consumer.seekToBeginning(partitions);
            List<String> seen = new ArrayList<>();
            long deadline = System.currentTimeMillis() + 20_000;
            while (seen.size() < 20 && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    seen.add(record.value());
                }
            }
            Collections.sort(seen);
            System.out.println(String.join(" ", seen));
        }
    }
}
